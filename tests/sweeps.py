"""What of a test `make check` leaves to `make test`, and that to `make test-long`: what more cases show again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """These values of a parameter are for `make test`."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def long(*values: Any) -> list[Any]:
    """These values of a parameter are for `make test-long`."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def mostly_slow(cases: Mapping[str, Any], at_once: Collection[str]) -> list[Any]:
    """The values of a parameter by the names of the cases; all but some are for `make test`."""
    return [
        pytest.param(value, id=name, marks=() if name in at_once else pytest.mark.slow) for name, value in cases.items()
    ]
