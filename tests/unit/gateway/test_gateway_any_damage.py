"""Whatever becomes of the bytes of a row: the gateway starts, and serves all that the row does not belong to."""

from __future__ import annotations

import json
from array import array
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.gateway.log import Checkpoint
from kclient.gateway.producer_windows import ProducerWindow, Remembered
from kclient.gateway.rows import groups
from kclient.gateway.rows.broker import decode_cluster_id, decode_settings, encode_cluster_id, encode_settings
from kclient.gateway.rows.delegation_tokens import DelegationTokenRow, TokenPrincipal
from kclient.gateway.rows.gateways import Endpoint, FeatureRange, GatewayRow
from kclient.gateway.rows.numbers import PRODUCER_IDS
from kclient.gateway.rows.partitions import decode_checkpoint, encode_checkpoint
from kclient.gateway.rows.streams_groups import (
    StreamsGroupSnapshot,
    StreamsMemberSnapshot,
    decode_streams_group,
    decode_streams_member,
    encode_streams_group,
    encode_streams_member,
)
from kclient.gateway.rows.streams_topology import Copartition, StreamsTopic, Subtopology, Topology
from kclient.gateway.rows.topics import IntentRow, TopicRow
from kclient.gateway.rows.units import UnitRow
from kclient.gateway.rows.virtual import (
    BlockRow,
    IndexedRow,
    decode_blocks,
    decode_entries,
    encode_blocks,
    encode_entries,
)
from kclient.htp import open_store
from kclient.htp.embedded.recovery import SyncCheckpoint
from kclient.htp.rows import seal, unsealed
from kclient.net.sasl.scram import ScramCredential
from tests.all_rows import scan_all
from tests.example_budget import examples
from tests.gateway_wire import batch_of, running
from tests.unit.gateway.test_gateway_damage import fill

GROUP = (
    b'{"format":1,"group":"g","generation":2,"protocol_type":"consumer","protocol":"range","leader":"m","since":1795,'
    b'"members":[{"id":"m","instance":null,"client":"c","host":"/h","session_timeout":45000,"rebalance_timeout":300000,'
    b'"protocols":[["range","AAEAAAABAAFhAAAAAA=="]],"assignment":"AAEAAAABAAFhAAAAAQAAAAD/////"}]}'
)
OFFSET = b'[100,3,"metadata",1795342862215,null,"c1d69da761bf480bb67bc279ffdd76fb"]'
CHECKPOINT = encode_checkpoint(
    Checkpoint(
        24,
        3,
        {11: ProducerWindow(1, (Remembered(14, 15, 14, -1), Remembered(16, 17, 16, 1795)), 1795)},
        ((1, 3), (2, 8)),
    )
)
STORE_CHECKPOINT = SyncCheckpoint(24, 20, 952, 3, {0: 17}, 2).encode()
TOPIC = TopicRow(bytes(range(16)), 2, 1, "domain", [17, 18], {"retention.ms": "17"})
INTENT = IntentRow("domain", bytes(range(16)))
GATEWAY = GatewayRow(3, "6d0c", 17, {"PLAINTEXT": Endpoint("h", 9092, "PLAINTEXT")}, "rack", {"f": FeatureRange(0, 2)})
CHANGELOG = StreamsTopic("g-changelog", 0, -1, (("cleanup.policy", "compact"),))
TOPOLOGY = Topology(3, (Subtopology("0", ("a",), ("r",), (CHANGELOG,), (CHANGELOG,), (Copartition((0,), (0,)),)),))
STREAMS = encode_streams_group(StreamsGroupSnapshot("g", 7, 6, "d1", 3, 1, TOPOLOGY), 1795)
TASKS = {"0": frozenset({1, 2})}
STREAMS_MEMBER = encode_streams_member(
    StreamsMemberSnapshot(
        "m", "r", "c", "/h", 300_000, 3, "p", ("h", 80), (("zone", "z"),), 7, 6, "stable", ({"0": {3: 6}}, TASKS, {}),
        ({}, TASKS, {}), (TASKS, {}, {}),
    )
)  # fmt: skip
DELEGATION_TOKEN = DelegationTokenRow(
    TokenPrincipal("User", "a"), TokenPrincipal("User", "b"), (TokenPrincipal("User", "c"),), 1795, 1799, 1800, "0f",
    {"SCRAM-SHA-256": ScramCredential(bytes(24), 4096, bytes(32), bytes(32))},
)  # fmt: skip
DECODERS: dict[str, tuple[bytes, Any]] = {
    "a streams group": (STREAMS, lambda row: decode_streams_group(row, "g")),
    "a member of a streams group": (STREAMS_MEMBER, lambda row: decode_streams_member(row, "m")),
    "a partition's checkpoint": (CHECKPOINT, decode_checkpoint),
    "a group": (seal(GROUP), lambda row: groups.decode_group(row, "g")),
    "a committed offset": (groups.encode_offset(groups.CommittedOffset(100, 3, "m"), bytes(16)), groups.decode_offset),
    "the store's checkpoint": (STORE_CHECKPOINT, SyncCheckpoint.decode),
    "a topic": (TOPIC.encode(), TopicRow.decode),
    "an intent": (INTENT.encode(), IntentRow.decode),
    "an intent of a run": (INTENT._replace(run="6d0c").encode(), IntentRow.decode),
    "a gateway": (GATEWAY.encode(), GatewayRow.decode),
    "a delegation token": (DELEGATION_TOKEN.encode(), DelegationTokenRow.decode),
    "a unit's leader epoch": (UnitRow(3, 17).encode(), UnitRow.decode),
    "what a shared topic's index tells": (IndexedRow(7, 9).encode(), IndexedRow.decode),
    "blocks of an index": (encode_blocks([BlockRow(3, 0, 9, 4, 8, 2, 700, 1795, 5, 1)]), decode_blocks),
    "entries of a block": (encode_entries(array("q", [1, 5]), array("q", [3, 4]), array("q", [-1, 7])), decode_entries),
    "a number": (PRODUCER_IDS.encode(1000), PRODUCER_IDS.decode),
    "the cluster's id": (encode_cluster_id("u7NqGHxpR6KWr6EYnXgz9A"), decode_cluster_id),
    "the broker's settings": (encode_settings({"num.partitions": "3"}), decode_settings),
}
FIRST: dict[str, tuple[bytes, Any]] = {
    "a streams group": (unsealed(STREAMS), lambda row: decode_streams_group(row, "g")),  # as if there had been such
    "a member of a streams group": (unsealed(STREAMS_MEMBER), lambda row: decode_streams_member(row, "m")),
    "a group": (GROUP, lambda row: groups.decode_group(row, "g")),
    "a committed offset": (OFFSET, groups.decode_offset),
    "a partition's checkpoint": (unsealed(CHECKPOINT).replace(b'"format":2', b'"v":1'), decode_checkpoint),
    "the store's checkpoint": (unsealed(STORE_CHECKPOINT).replace(b'"format":2,', b""), SyncCheckpoint.decode),
    "a number": (b"1000", PRODUCER_IDS.decode),
    "the cluster's id": (b"u7NqGHxpR6KWr6EYnXgz9A", decode_cluster_id),
    "the broker's settings": (b'{"num.partitions": "3"}', decode_settings),
    "an intent": (b"domain", IntentRow.decode),
}
"""As the first versions wrote them: without a checksum."""
TOKENS = [
    b"e95", b"e999", b".5", b"9" * 30, b"9" * 5000, b"-", b"+", b"NaN", b"Infinity", b"null", b"true", b'"', b"\\ud800",
    b"[" * 100_000, b'{"a":' * 100_000, b"[[1]]", b"{}", b",", b"\x00", b"\xff",
]  # fmt: skip


COUNTS = st.integers(1, 3)
NEW = st.one_of(st.binary(max_size=2), st.sampled_from(TOKENS), st.from_regex(rb"[0-9e]", fullmatch=True))
"""Made once: to look through the parts of a strategy takes longer than to draw from it."""


@st.composite
def damaged(draw: st.DrawFn, row: bytes) -> bytes:
    """A row of which some bytes are others, were lost, or came in between."""
    for _ in range(draw(COUNTS)):
        place = draw(st.integers(0, len(row)))
        behind = min(len(row), place + draw(st.sampled_from([0, 1, 1, 1, 2, 10, len(row)])))
        row = row[:place] + draw(NEW) + row[behind:]
    return row


@pytest.mark.parametrize(("row", "decode"), DECODERS.values(), ids=DECODERS)
@given(data=st.data())
@examples(400)
def test_damage_is_seen(row: bytes, decode: Any, data: st.DataObject) -> None:
    """Unless nothing but the checksum is lost, or it is and the row looks like one of the first versions."""
    there = decode(row)
    changed = data.draw(damaged(row))
    try:
        found = decode(changed)
    except ValueError:
        assert changed != row
        return
    assert found == there or unsealed(changed) == changed


@pytest.mark.parametrize(("row", "decode"), FIRST.values(), ids=FIRST)
def test_rows_of_the_first_versions(row: bytes, decode: Any) -> None:
    of_now = {name: decoder(newer) for name, (newer, decoder) in DECODERS.items()}
    (name,) = (name for name, first in FIRST.items() if first[0] is row)
    if name not in ("a committed offset", "an intent"):
        assert decode(row) == of_now[name]
    assert decode(row)


@pytest.mark.parametrize(("row", "decode"), FIRST.values(), ids=FIRST)
@given(data=st.data())
@examples(400)
def test_damage_is_a_value_error(row: bytes, decode: Any, data: st.DataObject) -> None:
    changed = data.draw(damaged(row))
    try:
        found = decode(changed)
    except ValueError:
        return
    for number in numbers(found):
        assert type(number) is int
        assert -(1 << 63) <= number < 1 << 64


def numbers(value: Any) -> list[Any]:
    """All numbers in what was decoded."""
    if isinstance(value, (int, float)):
        return [value]
    if isinstance(value, dict):
        return [number for item in value.items() for each in item for number in numbers(each)]
    if isinstance(value, (tuple, list)):
        return [number for each in value for number in numbers(each)]
    names = getattr(type(value), "__slots__", ())
    return [number for name in names for number in numbers(getattr(value, name))]


@pytest.mark.parametrize("token", TOKENS[:4])
@pytest.mark.parametrize(("row", "decode"), FIRST.values(), ids=FIRST)
def test_each_number_in_its_place(row: bytes, decode: Any, token: bytes) -> None:
    """A digit of any number was replaced: also where one byte alone makes it another kind of number."""
    for place in range(len(row)):
        if row[place : place + 1].isdigit():
            for changed in (row[:place] + token + row[place + 1 :], row[:place] + b"e" + row[place + 1 :]):
                try:
                    found = decode(changed)
                except ValueError:
                    continue
                assert all(type(number) is int for number in numbers(found))


KEYS = [
    "brk/{broker}/{1}", "group-offset/g/a/", "group/g", "kafka/cluster-id", "kafka/config/broker", "kafka/intent/c",
    "kafka/leader-epoch", "kafka/log-start/{0}", "kafka/log/{0}", "kafka/producer-ids", "kafka/topic/a", "kafka/unit/",
]  # fmt: skip
OTHERS = {
    "group/g": GROUP,
    "kafka/intent/c": b'{"format": 1, "mapping": "domain", "id": "c1d69da761bf480bb67bc279ffdd76fb"}',
    "kafka/producer-ids": b"16778216",
    f"kafka/unit/{bytes(16).hex()}/0": UnitRow(1, 5).encode(),
}


async def serve(url: str, given: int) -> int:
    """All that does not belong to topic `a`; of that, that there are answers. A new producer id."""
    with anyio.fail_after(60):
        async with running(url) as (gateway, wire):
            assert await wire.values("b") == [b"%d" % number for number in range(10)]
            assert await wire.committed("g", "b") == 6
            assert (await wire.offset("b", -1)).error_code == 0
            found = await wire.producer_id()
            assert given < found < 1 << 63
            await wire.produce("a", batch_of(b"more"))
            await wire.fetch("a", 0)
            await wire.offset("a", -1)
            await wire.committed("g", "a")
            assert (await wire.create("new")).error_code == 0
            assert (await wire.produce("new", batch_of(b"new"))).error_code == 0
            assert await wire.delete("new") == 0
            assert gateway.failure is None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
@given(data=st.data())
@examples(6)
def test_a_gateway_starts_with_any_damage(
    key: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"

    async def main() -> None:
        await fill(url)
        async with open_store(url) as store:
            await store.manager.commit(OTHERS)
            topic = json.loads(unsealed((await store.manager.get(["kafka/topic/a"]))["kafka/topic/a"].value))
            broker, *_ = topic.get("brokers", ["brk-0"])
            prefix = key.format(topic["id"], *topic["incarnations"], broker=broker)
            (found,) = (await scan_all(store.manager, prefix)).items()
            changed = {found[0]: data.draw(damaged(found[1].value))}
            await store.manager.commit(changed)
        await serve(url, await serve(url, -1))

    anyio.run(main)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b'"leader":"m"', b'"leader":"n"', "its leader 'n' is not a member"),
        (b'"leader":"m"', b'"leader":null', "its leader None is not a member"),
        (b'"members":[', b'"members":[' + GROUP[GROUP.index(b'{"id"') : -2] + b",", "it lists a member twice"),
        (b'"generation":2', b'"generation":2147483647', "2147483647"),
    ],
)
def test_a_group_that_no_gateway_could_go_on_with(old: bytes, new: bytes, text: str) -> None:
    """It was taken, and the gateway ended when its members' sessions did."""
    row = GROUP.replace(old, new)
    assert row != GROUP
    with pytest.raises(ValueError, match=text):
        groups.decode_group(row, "g")
