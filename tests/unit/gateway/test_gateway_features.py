"""UpdateFeatures: the level of a feature is the same at all gateways of a store, and outlives them (KIP-584)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

import kclient
from kclient.admin import Admin, FeatureUpdate, UpgradeType
from kclient.errors import ErrorCode, InvalidUpdateVersionError
from kclient.gateway import Gateway
from kclient.gateway.features import SUPPORTED
from kclient.gateway.rows.features import FeaturesRow
from kclient.gateway.rows.gateways import GatewayRow
from kclient.gateway.rows.keys import FEATURES, gateway_key
from kclient.htp import FormatVersionError, StorageError, open_store
from kclient.htp.memory.manager import MemoryManager
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, names, running
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

pytestmark = pytest.mark.anyio

NAME = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3


async def level_of(wire: Wire) -> tuple[int, int]:
    """The level that clients are told of, 0 for none, and its epoch."""
    answer = await wire(m.ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert all(each.min_version_level == each.max_version_level for each in answer.finalized_features)
    return levels.get(NAME, 0), answer.finalized_features_epoch


async def update(wire: Wire, level: int, kind: int = UPGRADE, *, dry: bool = False, version: int = 2) -> Any:
    row = m.FeatureUpdateKey(feature=NAME, max_version_level=level)
    if version:
        row.upgrade_type = kind
    else:
        row.allow_downgrade = kind != UPGRADE
    return await wire(m.UpdateFeaturesRequest(feature_updates=[row], validate_only=dry), version)


@pytest.mark.parametrize("version", range(3))
async def test_levels_change_and_their_epoch_grows(version: int) -> None:
    async with running() as (_, wire):
        seen = [await level_of(wire)]
        for level, kind in ((1, SAFE), (0, SAFE), (1, UPGRADE), (2, UPGRADE)):
            answer = await update(wire, level, kind, version=version)
            assert (answer.error_code, answer.error_message) == (0, None)
            rows = [(each.feature, each.error_code, each.error_message) for each in answer.results]
            assert rows == [(NAME, 0, None)][: 2 - version]
            seen.append(await level_of(wire))
    assert [level for level, _ in seen] == [2, 1, 0, 1, 2]
    assert all(after[1] > before[1] for before, after in pairwise(seen))


async def test_what_changes_nothing_has_no_other_epoch() -> None:
    async with running() as (_, wire):
        before = await level_of(wire)
        for level, kind, dry in ((2, UPGRADE, False), (2, SAFE, False), (1, SAFE, True), (0, UNSAFE, True)):
            assert (await update(wire, level, kind, dry=dry)).error_code == 0
        assert (await wire(m.UpdateFeaturesRequest(), 2)).error_code == 0
        assert await level_of(wire) == before


@pytest.mark.parametrize(
    ("level", "kind", "why"),
    [
        (3, UPGRADE, "only support versions 0-2"),
        (-1, UPGRADE, "cannot be less than 0"),
        (1, UPGRADE, "Can't downgrade the version of this feature without"),
        (1, 0, "does not support the given upgrade type"),
        (1, 9, "does not support the given upgrade type"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
async def test_what_cannot_be_is_refused_with_its_cause(level: int, kind: int, why: str, dry: bool) -> None:
    async with running() as (_, wire):
        answer = await update(wire, level, kind, dry=dry)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert why in answer.error_message
        assert f"Invalid update version {level} for feature {NAME}." in answer.error_message
        assert (await level_of(wire))[0] == 2


async def test_all_of_a_request_is_done_or_nothing() -> None:
    good = m.FeatureUpdateKey(feature=NAME, max_version_level=1, upgrade_type=SAFE)
    async with running() as (_, wire):
        unknown = m.FeatureUpdateKey(feature="metadata.version", max_version_level=1)
        answer = await wire(m.UpdateFeaturesRequest(feature_updates=[good, unknown]), 2)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "metadata.version" in answer.error_message
        twice = await wire(m.UpdateFeaturesRequest(feature_updates=[good, good]), 2)
        assert (twice.error_code, "more than once" in twice.error_message) == (ErrorCode.INVALID_REQUEST, True)
        assert await level_of(wire) == (2, 0)


async def test_a_level_is_not_raised_by_what_only_lowers() -> None:
    async with running() as (_, wire):
        await update(wire, 0, UNSAFE)
        answer = await update(wire, 1, SAFE)
        assert "Can't downgrade to a newer version." in answer.error_message
        assert (await level_of(wire))[0] == 0


async def test_a_level_outlives_the_gateway(url: str) -> None:
    async with running(url) as (_, wire):
        await update(wire, 1, SAFE)
        told = await level_of(wire)
    async with running(url) as (_, wire):
        assert await level_of(wire) == told


@asynccontextmanager
async def two(url: str) -> AsyncIterator[tuple[Any, list[Wire]]]:
    async with open_store(url) as store, joined(store, 1) as (_, first), joined(store, 2) as (_, second):
        yield store, [first, second]


async def test_all_gateways_of_a_store_tell_the_same(url: str) -> None:
    async with two(url) as (_, (first, second)):
        for number, (wire, other) in enumerate([(first, second), (second, first)]):
            assert (await update(wire, 1 - number, SAFE)).error_code == 0
            told = await level_of(wire)
            assert told[0] == 1 - number
            await until(lambda other=other: level_of(other), lambda found, told=told: found == told)


async def test_two_who_change_it_at_once_both_have_their_say(url: str) -> None:
    """The second works from what the first has made: its epoch is greater, not the same."""
    async with two(url) as (_, (first, second)):
        assert (await update(first, 1, SAFE)).error_code == 0
        assert (await update(second, 0, SAFE)).error_code == 0
        assert await level_of(second) == (0, 2)
        await until(lambda: level_of(first), lambda found: found == (0, 2))


async def test_a_level_waits_for_gateways_of_an_earlier_release(url: str) -> None:
    """Such a one tells of no features in its row, and would have clients go by the level before."""
    async with two(url) as (store, (first, _)):
        key = gateway_key(2)
        found = (await store.manager.get([key]))[key]
        row = GatewayRow.decode(found.value)
        assert set(row.features) == {each.name for each in SUPPORTED}
        await store.manager.commit({key: row._replace(features={}).encode()}, {key: found.version})

        async def refused() -> str:
            answer = await update(first, 1, SAFE, dry=True)
            return answer.error_message or ""

        text = await until(refused, bool)
        assert "node.id=2" in text
        assert "upgrade it first" in text


async def test_a_store_of_a_newer_release_is_not_served(url: str) -> None:
    async with open_store(url) as store:
        await store.manager.commit({FEATURES: FeaturesRow(7, {NAME: 3}).encode()}, {})
        with pytest.raises(FormatVersionError, match=r"transaction\.version=3.*newer release"):
            async with Gateway(store, listen=None):
                pass


async def test_levels_that_cannot_be_read_can_be_set_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(url) as store:
        async with joined(store, 1) as (_, wire):
            for level, kind in ((1, SAFE), (2, UPGRADE), (1, SAFE)):
                await update(wire, level, kind)
            before = await level_of(wire)
        found = (await store.manager.get([FEATURES]))[FEATURES]
        await store.manager.commit({FEATURES: found.value[:-1] + b"\0"}, {FEATURES: found.version})
        async with joined(store, 1) as (_, wire):
            told = await level_of(wire)
            assert told[0] == 2
            assert told[1] > before[1], "else clients would take it for older than what they know"
            assert "UpdateFeatures" in caplog.text
            assert (await update(wire, 1, SAFE)).error_code == 0
            assert (await level_of(wire))[1] > told[1]
        async with joined(store, 1) as (_, wire):
            assert (await level_of(wire))[0] == 1


async def test_where_the_store_fails_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (_, wire):
        commit = MemoryManager.commit

        async def failing(self: MemoryManager, writes: Any, *args: Any, **options: Any) -> int:
            if FEATURES in writes:
                raise StorageError("on purpose")
            return await commit(self, writes, *args, **options)

        monkeypatch.setattr(MemoryManager, "commit", failing)
        assert (await update(wire, 1, SAFE)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await level_of(wire) == (2, 0)
        monkeypatch.undo()
        assert (await update(wire, 1, SAFE)).error_code == 0
        assert await level_of(wire) == (1, 1)


async def test_our_producer_falls_back_to_what_is_in_use() -> None:
    """With level 1 it adds partitions by a request of their own, and keeps its epoch; with 2 each end raises that."""
    address = f"memory:{next(names)}"
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("t")
        for level, kind, bumps in ((1, UpgradeType.SAFE_DOWNGRADE, 0), (2, UpgradeType.UPGRADE, 1)):
            await admin.update_features({NAME: FeatureUpdate(level, kind)})
            described = await admin.describe_features()
            assert described.finalized_features[NAME] == (level, level)
            assert described.supported_features[NAME] == (0, 2)
            name = f"x{level}"
            async with kclient.Producer(bootstrap_servers=address, transactional_id=name) as producer:
                await producer.init_transactions()
                epochs = []
                for _ in range(2):
                    async with producer.transaction():
                        await producer.send("t", b"x")
                    epochs.append((await admin.describe_transactions([name]))[name].producer_epoch)
            assert epochs[1] - epochs[0] == bumps
        with pytest.raises(InvalidUpdateVersionError, match="downgrade"):
            await admin.update_features({NAME: FeatureUpdate(1)})


async def test_consumer_groups_are_a_feature() -> None:
    """Who switches it off has heartbeats of the new protocol refused; all others go on."""

    def joining() -> m.ConsumerGroupHeartbeatRequest:
        return m.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )

    async with running() as (_, wire):
        assert (await wire(joining(), 1)).error_code == 0
        row = m.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=SAFE)
        assert (await wire(m.UpdateFeaturesRequest(feature_updates=[row]), 2)).error_code == 0
        refused = await wire(joining(), 1)
        assert (refused.error_code, "group.version" in refused.error_message) == (ErrorCode.UNSUPPORTED_VERSION, True)
        row = m.FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=UPGRADE)
        assert (await wire(m.UpdateFeaturesRequest(feature_updates=[row]), 2)).error_code == 0
        assert (await wire(joining(), 1)).error_code == 0


async def test_without_streams_version_there_are_no_streams_groups() -> None:
    requests: list[Any] = [
        m.StreamsGroupHeartbeatRequest(group_id="s", member_id="m", member_epoch=1),
        m.StreamsGroupDescribeRequest(group_ids=["s"]),
    ]
    async with running() as (_, wire):
        for level, kind in ((0, SAFE), (1, UPGRADE)):
            row = m.FeatureUpdateKey(feature="streams.version", max_version_level=level, upgrade_type=kind)
            assert (await wire(m.UpdateFeaturesRequest(feature_updates=[row]), 2)).error_code == 0
            for request in requests:
                answer = await wire(request, 0)
                code = answer.groups[0].error_code if hasattr(answer, "groups") else answer.error_code
                assert code == (ErrorCode.GROUP_ID_NOT_FOUND if level else ErrorCode.UNSUPPORTED_VERSION)


async def test_without_share_version_there_are_no_share_groups() -> None:
    """As on Kafka: every request of them is refused, and no member is lost for good."""
    topic = m.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[])
    requests: list[tuple[Any, int]] = [
        (m.ShareGroupHeartbeatRequest(group_id="s", member_id="m", subscribed_topic_names=["t"]), 1),
        (m.ShareGroupDescribeRequest(group_ids=["s"]), 1),
        (m.ShareFetchRequest(group_id="s", member_id="m"), 1),
        (m.ShareAcknowledgeRequest(group_id="s", member_id="m", share_session_epoch=1), 1),
        (m.DescribeShareGroupOffsetsRequest(groups=[_all_offsets("s")]), 1),
        (m.AlterShareGroupOffsetsRequest(group_id="s", topics=[topic]), 0),
        (m.DeleteShareGroupOffsetsRequest(group_id="s"), 0),
    ]

    def code(answer: Any) -> int:
        return int(answer.groups[0].error_code if hasattr(answer, "groups") else answer.error_code)

    async with running() as (_, wire):
        for level, kind in ((0, SAFE), (1, UPGRADE)):
            row = m.FeatureUpdateKey(feature="share.version", max_version_level=level, upgrade_type=kind)
            assert (await wire(m.UpdateFeaturesRequest(feature_updates=[row]), 2)).error_code == 0
            for request, version in requests:
                refused = code(await wire(request, version)) == ErrorCode.UNSUPPORTED_VERSION
                assert refused is (level == 0), request


def _all_offsets(group_id: str) -> m.DescribeShareGroupOffsetsRequestGroup:
    return m.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
