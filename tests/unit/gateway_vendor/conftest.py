"""What these tests open as `memory:` is a simulated vendor's store."""

from __future__ import annotations

import pytest

import kclient.htp.store
from kclient.htp.brokers import MOST_BROKERS
from kclient.htp.testing import SimulatedStore, open_simulated
from tests.mappings import have_topics_lie


def open_with_many_brokers(name: str, *, durability: str) -> SimulatedStore:
    """In the place of `kclient.htp.memory.open_memory`."""
    return open_simulated(name, durability=durability, brokers=MOST_BROKERS)


@pytest.fixture(autouse=True)
def _vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kclient.htp.store._BUILT_IN, "memory", "kclient.htp.testing:open_simulated")


@pytest.fixture
def _two_levels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    have_topics_lie(request, monkeypatch, "multilevel")


@pytest.fixture
def _shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    have_topics_lie(request, monkeypatch, "virtual")


@pytest.fixture
def _by_broker(_vendor: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    have_topics_lie(request, monkeypatch, "broker")
    opener = "tests.unit.gateway_vendor.conftest:open_with_many_brokers"
    monkeypatch.setitem(kclient.htp.store._BUILT_IN, "memory", opener)
