"""Gateways that coordinate transactions, which are refused by default until all of it is there."""

from __future__ import annotations

import pytest

from kclient.gateway import assembly


@pytest.fixture(autouse=True)
def coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "SERVES_TRANSACTIONS", True)
