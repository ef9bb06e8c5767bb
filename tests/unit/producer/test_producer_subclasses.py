"""What a subclass overrides is what its users get, whatever shortcut a producer has for itself."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest

import kclient.sync
from kclient.producer import Producer
from kclient.sync.portal import get_portal
from kclient.testing import memory_broker
from tests.fake_kafka import FakeKafka

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1}
SETTINGS = [{}, {"value_serializer": lambda value: value}]
"""With the compiled append, and without."""


class Marking(Producer):
    """Marks every value."""

    async def send(self, topic: str, value: Any = None, *args: Any, **rest: Any) -> Any:
        return await super().send(topic, b"!" + value, *args, **rest)


class BlockingMarking(kclient.sync.Producer):
    """Marks every value."""

    def send(self, topic: str, value: Any = None, *args: Any, **rest: Any) -> Any:
        return super().send(topic, b"!" + value, *args, **rest)


class BlockingDeeper(BlockingMarking):
    """Inherits the override."""


class Counting(kclient.sync.Producer):
    """Overrides other things, and keeps `send`."""

    flushed = 0

    def flush(self, timeout: float | None = None) -> None:
        self.flushed += 1
        super().flush(timeout)


@pytest.mark.anyio
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "serializer"])
async def test_an_override_of_send_is_called(settings: dict[str, Any]) -> None:
    async with FakeKafka() as kafka, Marking(bootstrap_servers=kafka.bootstrap, **FAST, **settings) as producer:
        for number in range(50):
            await producer.send("t", b"%d" % number, b"key", partition=0, headers=[("h", b"1")])
        await producer.send_batch("t", [b"many"], partition=0)
        await producer.send_arrow("t", pyarrow.table({"value": [b"columns"]}))
        await producer.flush()
        assert kafka.values() == [*(b"!%d" % number for number in range(50)), b"many", b"columns"]


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "serializer"])
@pytest.mark.parametrize("face", [BlockingMarking, BlockingDeeper])
def test_an_override_of_send_is_called_in_blocking_code(
    face: type[kclient.sync.Producer], settings: dict[str, Any]
) -> None:
    kafka = FakeKafka()
    portal = get_portal()
    portal.call(kafka.start)
    try:
        with face(bootstrap_servers=kafka.bootstrap, **FAST, **settings) as producer:
            for number in range(50):
                producer.send("t", b"%d" % number, b"key", partition=0, headers=[("h", b"1")])
            producer.send_batch("t", [b"many"], partition=0)
            producer.send_arrow("t", pyarrow.table({"value": [b"columns"]}))
            producer.flush()
            assert kafka.values() == [*(b"!%d" % number for number in range(50)), b"many", b"columns"]
    finally:
        portal.call(kafka.aclose)


def test_a_subclass_that_keeps_send_keeps_its_speed() -> None:
    with memory_broker() as address, Counting(bootstrap_servers=address) as producer:
        assert vars(producer)["send"] == producer.send, "the object's own: a record costs no call of a Python function"
        producer.send("t", b"a")
        producer.flush()
        assert producer.flushed == 1
