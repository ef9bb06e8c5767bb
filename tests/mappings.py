"""Gateways that keep new topics in HTP in another way than the usual one."""

from __future__ import annotations

import pytest

import kclient.gateway.gateway
from kclient.gateway.mapping import Mapping, mapping_for


def have_topics_lie(monkeypatch: pytest.MonkeyPatch, mapping: str) -> None:
    """Have every gateway that is not told otherwise use this mapping."""

    def given(name: str) -> Mapping:
        return mapping_for(mapping if name == "domain" else name)

    monkeypatch.setattr(kclient.gateway.gateway, "mapping_for", given)
