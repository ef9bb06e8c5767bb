"""What the tests of the gateway share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway_wire import names
from tests.mappings import have_topics_lie


@pytest.fixture(autouse=True)
def _mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--mapping`: the gateway's tests with another one."""
    mapping: str = request.config.getoption("mapping")
    if mapping != "domain":
        have_topics_lie(request, monkeypatch, mapping)


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nobody else uses, of either kind."""
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'data'}"
    return f"memory:{next(names)}"
