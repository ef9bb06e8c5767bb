"""What the tests of partitions that share a topic have in common."""

from __future__ import annotations

import pytest

from tests.mappings import have_topics_lie


@pytest.fixture
def virtual(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways keep new topics in HTP so that their partitions share one."""
    have_topics_lie(request, monkeypatch, "virtual")
