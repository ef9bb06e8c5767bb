"""What the tests of several gateways share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway_wire import names


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nobody else uses, of either kind."""
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'data'}"
    return f"memory:{next(names)}"
