"""What holds for all unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Gateways wait longer than half a second for a partition to open: many processes share this machine's disk.

    Tests of stores that hang shorten it again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kclient.gateway.partition_life._SOON_S", 5.0)
        yield
