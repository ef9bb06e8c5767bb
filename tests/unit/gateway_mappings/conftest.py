"""Gateways of these tests keep new topics in HTP in the way that the module names as `MAPPING`."""

from __future__ import annotations

import pytest

from tests.mappings import have_topics_lie


@pytest.fixture(autouse=True)
def _lie_elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    have_topics_lie(request, monkeypatch, request.module.MAPPING)
