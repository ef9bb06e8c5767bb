"""What the tests of the gateway share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway_wire import names
from tests.mappings import have_topics_lie


@pytest.fixture(autouse=True)
def _mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--mapping`: the gateway's tests with another one.

    Those marked `domains` are about the usual one; `many_partitions` are more than there may be brokers.
    """
    mapping: str = request.config.getoption("mapping")
    if mapping == "domain":
        return
    if request.node.get_closest_marker("domains"):
        pytest.skip("is about the mapping domain")
    if mapping == "broker" and request.node.get_closest_marker("many_partitions"):
        pytest.skip("there are not so many brokers")
    have_topics_lie(monkeypatch, mapping)


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nobody else uses, of either kind."""
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'data'}"
    return f"memory:{next(names)}"
