"""Gateways of these tests keep new topics in HTP under topics of two levels."""

from __future__ import annotations

import pytest

import kclient.gateway.gateway
from kclient.gateway.mapping import Mapping, mapping_for


@pytest.fixture(autouse=True)
def _two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(name: str) -> Mapping:
        return mapping_for("multilevel" if name == "domain" else name)

    monkeypatch.setattr(kclient.gateway.gateway, "mapping_for", given)
