"""`poll(max_records=...)`: fewer records or more than `max.poll.records`, and none is lost between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from kclient import sync
from kclient.consumer import Consumer
from kclient.testing import memory_broker

pytestmark = pytest.mark.anyio

VALUES = [b"%d" % number for number in range(40)]


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t")
        with sync.Producer(bootstrap_servers=found) as producer:
            producer.send_batch("t", VALUES).result()
        yield found


LIMITS: list[int | None] = [3, 1, None, 20, 2]
"""With `max.poll.records=5`: 31 together."""


async def test_so_many_are_returned(address: str) -> None:
    async with Consumer(
        bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=5
    ) as consumer:
        consumer.assign([("t", 0)])
        found = [[record.value for record in await consumer.poll(10, max_records=limit)] for limit in LIMITS]
        assert [len(each) for each in found] == [3, 1, 5, 20, 2]
        assert await consumer.position(("t", 0)) == 31
        assert list(chain(*found)) == VALUES[:31]


def test_of_the_blocking_consumer_too(address: str) -> None:
    with sync.Consumer(
        bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=5
    ) as consumer:
        consumer.assign([("t", 0)])
        found = [[record.value for record in consumer.poll(10, max_records=limit)] for limit in LIMITS]
        assert list(chain(*found)) == VALUES[:31]


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), ("5", TypeError), (2.5, TypeError)])
async def test_what_is_no_number_is_refused(address: str, limit: Any, error: type[Exception]) -> None:
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(error, match="max_records"):
            await consumer.poll(0.1, max_records=limit)
        assert await consumer.poll(10, max_records=1)
