"""Objects keep their attributes where CPython finds them fastest: what is looked at for each record costs nanoseconds.

CPython 3.11 and 3.12 keep them beside the object while there are fewer than 30, or in slots; beyond that each of them
is looked up in a dictionary.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Iterator

import pytest

import kclient.sync
from kclient.testing import memory_broker

MOST = 29
EXEMPT = {
    "kclient.consumer.group.member.GroupMember",  # is looked at a few times for each poll
    "kclient.gateway.gateway.Gateway",  # when it starts and ends
    "kclient.net.server_connection.ServerConnection",  # for each request
}
"""Objects that nothing looks at for each record. (Settings are read once, when a client is made.)"""


@pytest.fixture
def consumer() -> Iterator[kclient.sync.Consumer]:
    """Has iterated over many records, beside a producer and a gateway in this process."""
    with (
        memory_broker() as address,
        kclient.sync.Producer(bootstrap_servers=address) as producer,
        kclient.sync.Consumer(bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        producer.send_batch("t", [b"v"] * 2000)
        producer.flush()
        consumer.assign([("t", 0)])
        for record in consumer:
            if record.offset == 1999:
                break
        yield consumer


def test_objects_have_no_more_attributes_than_are_found_at_once(consumer: kclient.sync.Consumer) -> None:
    found: dict[str, int] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if isinstance(thing, type):
            continue
        if str(kind.__module__).startswith("kclient.") and not kind.__module__.startswith("kclient.config."):
            name = f"{kind.__module__}.{kind.__qualname__}"
            found[name] = max(found.get(name, 0), len(getattr(thing, "__dict__", ())))
    assert {
        "kclient.consumer.readiness.PollReadiness",
        "kclient.consumer.fetch.collector.FetchCollector",
        "kclient.gateway.partition.Partition",
        "kclient.net.connection.Connection",
        "kclient.producer.accumulator.Accumulator",
        "kclient.producer.batch_buffer.BatchBuffer",
        "kclient.producer.lifecycle.ProducerLifecycle",
        "kclient.sync.consumer.Consumer",
    } <= found.keys()
    assert {name: count for name, count in found.items() if count > MOST and name not in EXEMPT} == {}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the instructions' names are those of CPython 3.11")
@pytest.mark.skipif(sys.gettrace() is not None, reason="where lines are traced, nothing is specialised")
def test_iterating_looks_up_nothing_in_dictionaries(consumer: kclient.sync.Consumer) -> None:
    code = dis.get_instructions(kclient.sync.Consumer.__next__, adaptive=True)
    used = {step.argval: step.opname for step in code if step.argval in {"poll_due", "poll_needed"}}
    assert used.keys() == {"poll_due", "poll_needed"}
    assert set(used.values()) <= {"LOAD_ATTR_SLOT", "LOAD_ATTR_INSTANCE_VALUE"}, used
