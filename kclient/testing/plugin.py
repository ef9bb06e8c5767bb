"""The pytest plugin: the fixture `kclient_broker`. Imports nothing heavy, as pytest loads it in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def kclient_broker() -> Iterator[str]:
    """The address of an empty broker in memory, for this test alone: pass it as `bootstrap_servers`."""
    from kclient.testing.broker import memory_broker

    with memory_broker() as address:
        yield address
