"""What of a test `make check` leaves to `make test`: what the first cases show at once, and more cases show again."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """These values of a parameter are for `make test`."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


SECOND_LOOP_SLOW = pytest.mark.parametrize("anyio_backend", ["asyncio", *slow("trio")])
"""For tests that take long for what they hold or compute: `make check` runs them on one loop, `make test` on both."""
