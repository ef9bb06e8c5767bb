"""Gateways of these tests keep new topics in HTP under topics of two levels."""

from __future__ import annotations

import pytest

from tests.mappings import have_topics_lie


@pytest.fixture(autouse=True)
def _two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    have_topics_lie(monkeypatch, "multilevel")
