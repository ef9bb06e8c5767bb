"""What these tests open as `memory:` is a store without ordinal positions."""

from __future__ import annotations

import pytest

import kclient.htp.store


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kclient.htp.store._BUILT_IN, "memory", "tests.plain_store:open_plain")
