"""Settings changed while the gateway runs: none is lost, all have their effect at once and after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.config.setting import Number
from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway, connection_quota
from kclient.gateway.config import BrokerConfig, TopicConfig
from kclient.gateway.dynamic_config import READ_ONLY
from kclient.gateway.partition import Partition
from kclient.gateway.retention import Retention
from kclient.gateway.rows.keys import SETTINGS
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS
from kclient.htp import StorageError, open_store
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.topic import MemoryTopic
from kclient.htp.port import TopicSettings
from kclient.htp.rows import unsealed
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from kclient.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from tests.gateway_wire import Wire, batch_of, connect, names, produce_request, running
from tests.sweeps import slow

pytestmark = pytest.mark.anyio

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
TOPIC, BROKER = 2, 4


async def together(wires: list[Wire], kind: int, resource: str, changes: list[tuple[str, int, str | None]]) -> None:
    """Each change in a request of its own, on a connection of its own, all at the same time."""

    async def one(wire: Wire, change: tuple[str, int, str | None]) -> None:
        assert await wire.alter(kind, resource, change) == 0

    async with anyio.create_task_group() as group:
        for wire, change in zip(wires, changes, strict=True):
            group.start_soon(one, wire, change)


TOPIC_CHANGES: list[tuple[str, int, str | None]] = [
    ("retention.ms", SET, "1000"), ("retention.bytes", SET, "2000"), ("max.message.bytes", SET, "3000"),
    ("segment.ms", SET, "4000"), ("cleanup.policy", APPEND, "compact"),
    ("message.timestamp.type", SET, "LogAppendTime"),
]  # fmt: skip
BROKER_CHANGES: list[tuple[str, int, str | None]] = [
    ("num.partitions", SET, "2"), ("fetch.max.bytes", SET, "2000"), ("message.max.bytes", SET, "3000"),
    ("group.max.size", SET, "4"), ("log.cleanup.policy", APPEND, "compact"), ("delete.topic.enable", SET, "false"),
]  # fmt: skip


async def test_of_changes_at_the_same_time_none_is_lost(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t")
        wires = [connect(gateway) for _ in TOPIC_CHANGES]
        for kind, resource, changes in ((TOPIC, "t", TOPIC_CHANGES), (BROKER, "1", BROKER_CHANGES)):
            await together(wires, kind, resource, changes)
        for each in wires:
            await each.aclose()
        await check_changes(wire)
        record = gateway.parts.topics.get("t")
        assert record is not None
        assert (record.config.retention_ms, record.config.compacts) == (1000, True)
    async with running(url) as (_, wire):
        await check_changes(wire)


async def check_changes(wire: Wire) -> None:
    for kind, resource, changes in ((TOPIC, "t", TOPIC_CHANGES), (BROKER, "1", BROKER_CHANGES)):
        found = await wire.configs(kind, resource)
        for name, operation, value in changes:
            expected = value if operation == SET else f"delete,{value}"
            assert found[name][0] == expected, name


async def join(wire: Wire, group: str, session_timeout_ms: int) -> int:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=1000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return int((await wire(request, 5)).error_code)


async def check_group_settings(wire: Wire) -> None:
    assert await join(wire, "g", 500) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert await join(wire, "g", 1500) == ErrorCode.MEMBER_ID_REQUIRED
    assert await join(wire, "g", 6000) == ErrorCode.INVALID_SESSION_TIMEOUT
    found = await wire.configs(BROKER, "1")
    assert (found["group.min.session.timeout.ms"], found["group.max.session.timeout.ms"]) == (("1000", 2), ("2000", 2))


async def test_the_settings_of_groups_apply_at_once_and_after_a_restart(url: str) -> None:
    async with running(url) as (gateway, wire):
        assert await join(wire, "g", 6000) == ErrorCode.MEMBER_ID_REQUIRED
        changes = [
            ("group.min.session.timeout.ms", SET, "1000"), ("group.max.session.timeout.ms", SET, "2000"),
            ("group.max.size", SET, "1"), ("offset.metadata.max.bytes", SET, "3"),
            ("group.initial.rebalance.delay.ms", SET, "0"), ("offsets.retention.minutes", SET, "1"),
            ("offsets.retention.check.interval.ms", SET, "60000"),
        ]  # fmt: skip
        assert await wire.alter(BROKER, "", *changes) == 0
        await check_group_settings(wire)
        settings = gateway.parts.groups.table.settings
        assert gateway.parts.groups.table.groups["g"].group.settings is settings
        assert (settings.group_max_size, settings.offset_metadata_max_bytes) == (1, 3)
        assert (settings.group_initial_rebalance_delay_ms, settings.offsets_retention_minutes) == (0, 1)
    async with running(url) as (gateway, wire):
        assert gateway.parts.groups.table.settings == settings
        await check_group_settings(wire)
        assert await wire.alter(BROKER, "", ("group.max.session.timeout.ms", DELETE, None)) == 0
        assert await join(wire, "g", 6000) == ErrorCode.MEMBER_ID_REQUIRED


async def test_offsets_expire_by_the_changed_time(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t")
        assert await wire.commit("g", "t", 1) == 0
        checked = anyio.Event()
        gateway.parts.groups.expiry.expire = checked.set  # type: ignore[method-assign]
        assert await wire.alter(BROKER, "", ("offsets.retention.check.interval.ms", SET, "1")) == 0
        with anyio.fail_after(10):
            await checked.wait()


async def test_retention_is_applied_at_the_changed_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = anyio.Event()

    async def apply(self: Retention) -> int:
        applied.set()
        return 0

    monkeypatch.setattr(Retention, "apply", apply)
    async with running() as (_, wire):
        assert await wire.alter(BROKER, "", ("log.retention.check.interval.ms", SET, "1")) == 0
        with anyio.fail_after(10):
            await applied.wait()


async def test_one_pass_of_retention_at_a_time() -> None:
    """The one on demand and the one by the clock share what keeps them apart."""
    async with running() as (gateway, wire):
        await wire.create("t", retention_ms="1")
        await wire.produce("t", batch_of(b"a", timestamp=1))
        cut: list[int] = []

        async def apply() -> None:
            cut.append(await gateway.apply_retention())

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(apply)
        assert sorted(cut) == [0, 0, 0, 0, 1]


async def test_what_cannot_be_changed_is_refused() -> None:
    async with running() as (_, wire):
        for name in READ_ONLY:
            assert await wire.alter(BROKER, "1", (name, SET, "1")) == ErrorCode.INVALID_REQUEST, name
        assert await wire.alter(BROKER, "1", ("num.partitions", SET, "none")) == ErrorCode.INVALID_CONFIG
        assert await wire.alter(BROKER, "2", ("num.partitions", SET, "1")) == ErrorCode.INVALID_REQUEST


UNUSABLE: list[list[tuple[str, int, str | None]]] = [
    [("max.connections.per.ip", SET, "0")],
    [("max.connections.per.ip.overrides", SET, "no-such-host.invalid:5")],
    [("group.min.session.timeout.ms", SET, "1800001")],
    [("group.max.session.timeout.ms", SET, "5999")],
    [("num.partitions", SET, "10001")],
    [("default.replication.factor", SET, "32768")],
    [("log.roll.ms", SET, "0")],
    [("log.roll.jitter.ms", SET, "-1")],
    [("log.flush.interval.ms", SET, "-1")],
    [("log.segment.bytes", SET, "1_048_576")],
    [("log.retention.ms", SET, "0")],
    [("log.retention.minutes", SET, "0")],
    [("log.retention.hours", SET, "0")],
]


@pytest.mark.parametrize("changes", UNUSABLE, ids=lambda changes: changes[0][0])
async def test_what_no_gateway_could_serve_with_is_refused(
    url: str, changes: list[tuple[str, int, str | None]]
) -> None:
    """It would be in the store, and no gateway on it could be started again."""
    async with open_store(url) as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await wire.alter(BROKER, "1", *changes) == ErrorCode.INVALID_CONFIG
            found = await wire.configs(BROKER, "1")
            assert all(found[name][1] != 2 for name, _, _ in changes)
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:
            assert not gateway.parts.config.dynamic


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
@pytest.mark.parametrize("text", ["-1", "-7", *slow("-2")])
@pytest.mark.parametrize("given", [True, False], ids=["given", "altered"])
async def test_retention_below_zero_is_for_ever(url: str, name: str, text: str, given: bool) -> None:
    """As in Kafka; and no topic is lost by it."""
    async with open_store(url) as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            await wire.produce("t", batch_of(b"a"))
            if not given:
                assert await wire.alter(BROKER, "1", (name, SET, text)) == 0
                assert (await wire.configs(2, "t"))["retention.ms"][0] == "-1"
                assert (await wire.create("u")).error_code == 0
            await wire.aclose()
        async with Gateway(store, listen=None, config={name: text} if given else None) as gateway:
            wire = connect(gateway)
            assert (await wire.configs(2, "t"))["retention.ms"][0] == "-1"
            assert await wire.values("t") == [b"a"]
            assert not gateway.parts.topics.damaged
            await wire.aclose()


def values_at_the_limits() -> Iterator[tuple[str, str]]:
    """Of every broker setting that is a number: what its limits are, or a few that anybody would try."""
    for name, setting in BROKER_SETTINGS.items():
        if isinstance(setting.kind, Number):
            limits = (setting.kind.low, setting.kind.high, -(1 << 31), -2, -1, 0, 1, (1 << 31) - 1, (1 << 63) - 1)
            for number in dict.fromkeys(limits):
                yield name, str(number)


@pytest.mark.parametrize(("name", "text"), list(values_at_the_limits()))
def test_no_value_of_a_broker_setting_leaves_topics_without_settings(name: str, text: str) -> None:
    """It is refused, at the start and by AlterConfigs, or every topic can be served under it."""
    try:
        config = BrokerConfig({name: text})
    except ConfigError:
        if name not in READ_ONLY:
            with pytest.raises(ConfigError):
                BROKER_SETTINGS[name].parse(text)
                BrokerConfig().altered({name: text})
        return
    TopicConfig.resolve(config, {})
    config.altered({name: text})


async def test_what_does_not_go_together_after_a_restart_is_left_out(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    async with open_store(url) as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await wire.alter(BROKER, "1", (most, SET, "8000"), ("num.partitions", SET, "3")) == 0
            await wire.aclose()
        async with Gateway(store, listen=None, config={least: 10000}) as gateway:
            wire = connect(gateway)
            assert f"{most}=8000 that was made earlier is left out" in caplog.text
            assert gateway.parts.config.get_int("num.partitions") == 3
            assert await wire.alter(BROKER, "1", ("num.partitions", SET, "4")) == 0
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:  # it was kept
            assert gateway.parts.config.get_int(most) == 8000
            assert gateway.parts.config.get_int("num.partitions") == 4


@pytest.mark.parametrize("change", ["delete", "set and delete", "replace all"])
async def test_what_was_left_out_can_be_deleted(url: str, change: str) -> None:
    least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    async with open_store(url) as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await wire.alter(BROKER, "1", (most, SET, "8000"), ("num.partitions", SET, "3")) == 0
            await wire.aclose()
        async with Gateway(store, listen=None, config={least: 10000}) as gateway:
            wire = connect(gateway)
            if change == "replace all":
                assert await wire.alter_all(BROKER, "1", {"num.partitions": "3"}) == 0
            if change == "set and delete":
                assert await wire.alter(BROKER, "1", (most, SET, "20000")) == 0
            if change != "replace all":
                assert await wire.alter(BROKER, "1", (most, DELETE, None)) == 0
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:
            assert gateway.parts.config.dynamic == {"num.partitions": "3"}


async def test_segments_that_are_changed_while_a_partition_opens(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery has compared them already; what was queued is just being taken."""
    async with open_store(url) as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t", segment_bytes=str(50 << 20))
            await wire.produce("t", batch_of(b"a"))
            await wire.aclose()
        taking, go_on = anyio.Event(), anyio.Event()
        take = Partition._take_queued

        async def slowly(partition: Partition) -> None:
            taking.set()
            await go_on.wait()
            await take(partition)

        monkeypatch.setattr(Partition, "_take_queued", slowly)
        async with Gateway(store, listen=None) as gateway:
            wire, admin = connect(gateway), connect(gateway)
            await wire.send(produce_request("t", batch_of(b"b")), 9)
            with anyio.fail_after(10):
                await taking.wait()
            assert await admin.alter(2, "t", ("segment.bytes", SET, str(2 << 20))) == 0
            go_on.set()
            await wire.frame()
            for _ in range(4):
                await wire.produce("t", batch_of(bytes(700_000)))
            assert len(await gateway.parts.partitions.get("t", 0).segments()) > 1
            await wire.aclose()
            await admin.aclose()


async def test_lists_have_no_blanks() -> None:
    async with running() as (_, wire):
        await wire.create("t", cleanup_policy="compact, delete")
        for operation, value, then in [
            (APPEND, "delete", "compact,delete"),
            (SUBTRACT, " delete", "compact"),
            (APPEND, "delete,compact", "compact,delete"),
        ]:
            assert await wire.alter(2, "t", ("cleanup.policy", operation, value)) == 0
            assert (await wire.configs(2, "t"))["cleanup.policy"][0] == then


async def test_the_last_override_stays_while_nobody_else_may_connect(url: str) -> None:
    async with running(url) as (_, wire):
        overrides = "max.connections.per.ip.overrides"
        assert await wire.alter(BROKER, "1", (overrides, SET, "127.0.0.1:50")) == 0
        assert await wire.alter(BROKER, "1", ("max.connections.per.ip", SET, "0")) == 0
        assert await wire.alter(BROKER, "1", (overrides, DELETE, None)) == ErrorCode.INVALID_CONFIG
        assert (await wire.configs(BROKER, "1"))[overrides][0] == "127.0.0.1:50"
        assert await wire.alter(BROKER, "1", ("max.connections.per.ip", DELETE, None), (overrides, DELETE, None)) == 0


async def test_a_host_that_is_not_found_any_more_stops_no_start(url: str, caplog: pytest.LogCaptureFixture) -> None:
    changed = {"max.connections.per.ip.overrides": "no-such-host.invalid:5,127.0.0.1:7", "max.connections.per.ip": "9"}
    async with open_store(url) as store:
        await store.manager.commit({SETTINGS: json.dumps(changed).encode()})
        async with Gateway(store, listen="127.0.0.1:0") as gateway:
            limits = gateway._running().limits
            assert (limits.quota.per_address, limits.quota.overrides) == (9, {"127.0.0.1": 7})
    assert "no-such-host.invalid cannot be found" in caplog.text


async def test_a_host_that_is_not_found_at_the_start_is_looked_up_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else may connect, and no name server answers while the gateway starts."""
    changed = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "slow.test:5"}
    answers = [anyio.sleep_forever, anyio.sleep_forever]

    async def lookup(_host: str, _port: object) -> list[tuple[object, ...]]:
        if answers:
            await answers.pop()()
        return [(0, 0, 0, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(connection_quota.anyio, "getaddrinfo", lookup)
    monkeypatch.setattr(connection_quota, "_LOOK_UP_S", 0.1)
    monkeypatch.setattr(connection_quota, "_LOOK_UP_AGAIN_S", 0.1)
    async with open_store(url) as store:
        await store.manager.commit({SETTINGS: json.dumps(changed).encode()})
        with anyio.fail_after(20):
            async with Gateway(store, listen=None) as gateway:
                limits = gateway._running().limits
                assert limits.quota.overrides == {}
                while limits.quota.overrides != {"127.0.0.1": 5}:
                    await anyio.sleep(0.005)
    assert caplog.text.count("slow.test cannot be found: no answer within 0.1 s") == 1


async def test_only_what_was_changed_while_a_gateway_ran_stops_no_start(url: str) -> None:
    async with open_store(url) as store:
        await store.manager.commit({SETTINGS: json.dumps({"max.connections": "50"}).encode()})
        config = {"max.connections.per.ip.overrides": "no-such-host.invalid:5"}
        with pytest.raises(ConfigError, match=r"no-such-host\.invalid cannot be found"):
            await Gateway(store, listen=None, config=config).start()


async def test_a_host_that_nobody_could_ask_for_is_refused() -> None:
    for host in ("ü..x", "é" * 80, "\N{ZERO WIDTH JOINER}"):
        text = f"{host}:5"
        async with running() as (_, wire):
            change = "max.connections.per.ip.overrides", SET, text
            assert await wire.alter(BROKER, "1", change) == ErrorCode.INVALID_CONFIG
        with pytest.raises(ConfigError, match="cannot be found"):
            await Gateway(f"memory:{next(names)}", config={"max.connections.per.ip.overrides": text}).__aenter__()


async def test_the_newest_limits_of_connections_are_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it took to look up a name of older ones; and what has nothing to do with them looks up none."""
    asked, go_on, looked_up = anyio.Event(), anyio.Event(), list[str]()

    async def lookup(host: str, _port: object) -> list[tuple[object, ...]]:
        looked_up.append(host)
        if len(looked_up) == 2:  # the first one was that of the change itself
            asked.set()
            await go_on.wait()
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(connection_quota.anyio, "getaddrinfo", lookup)
    async with running() as (gateway, wire):
        overrides = "max.connections.per.ip.overrides"
        assert await wire.alter(BROKER, "1", (overrides, SET, "slow.test:1")) == 0
        with anyio.fail_after(20):
            await asked.wait()
            assert await wire.alter(BROKER, "1", (overrides, DELETE, None), ("max.connections.per.ip", SET, "70")) == 0
            go_on.set()
            limits = gateway._running().limits
            while (limits.quota.per_address, limits.quota.overrides) != (70, {}):
                await anyio.sleep(0.005)
            await anyio.wait_all_tasks_blocked()
        assert (limits.quota.per_address, limits.quota.overrides) == (70, {})
        assert await wire.alter(BROKER, "1", (overrides, SET, "slow.test:2")) == 0
        with anyio.fail_after(20):
            while limits.quota.overrides != {"10.0.0.1": 2}:
                await anyio.sleep(0.005)
        count = len(looked_up)
        assert await wire.alter(BROKER, "1", ("num.partitions", SET, "3")) == 0
        await anyio.wait_all_tasks_blocked()
        assert len(looked_up) == count
        assert limits.quota.overrides == {"10.0.0.1": 2}


async def test_what_an_older_version_let_in_is_left_out(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The number of replicas is only shown: a topic is not damaged by one that does not fit."""
    async with open_store(url) as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            await wire.produce("t", batch_of(b"a"))
            await wire.aclose()
        row = json.loads(unsealed((await store.manager.get(["kafka/topic/t"]))["kafka/topic/t"].value))
        changed = {"num.partitions": "40000", "default.replication.factor": "40000"}
        await store.manager.commit(
            {
                "kafka/topic/t": json.dumps({**row, "replication_factor": 40000}).encode(),
                SETTINGS: json.dumps(changed).encode(),
            }
        )
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await wire.values("t") == [b"a"]
            assert (await wire.metadata("new", create=True)).topics[0].error_code == 0
            assert len((await wire.metadata("new")).topics[0].partitions) == 1
            await wire.aclose()
    assert "num.partitions=40000 that was made earlier is ignored" in caplog.text


# --- what the documentation says of them ---


class Recording(BrokerConfig):
    """Notes which settings are read."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        super().__init__()

    def topic_value(self, name: str, overrides: object) -> object:  # type: ignore[override]
        self.read.add(name)
        return super().topic_value(name, {})


def test_a_setting_says_of_itself_whether_it_has_an_effect() -> None:
    config = Recording()
    TopicConfig.resolve(config, {})
    codecs = {"compression.gzip.level", "compression.lz4.level", "compression.zstd.level"}  # one of them is read
    for name, setting in TOPIC_SETTINGS.items():
        effect = name in config.read | codecs
        assert effect != setting.doc.startswith("Without effect"), f"{name}: {setting.doc}"
    assert config.read >= {"segment.ms", "segment.bytes", "retention.ms"}
    for name, setting in BROKER_SETTINGS.items():
        assert setting.doc, name


async def test_topics_of_the_same_settings_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes some thirty microseconds: for ten thousand topics the loop would be held for a third of a second."""
    worked_out: list[dict[str, str]] = []
    resolve = TopicConfig.resolve

    def counted(broker: BrokerConfig, overrides: dict[str, str]) -> TopicConfig:
        worked_out.append(overrides)
        return resolve(broker, overrides)

    monkeypatch.setattr(TopicConfig, "resolve", counted)
    async with running(f"memory:{next(names)}") as (gateway, wire):
        for number in range(20):
            await wire.create(f"plain{number}")
            await wire.create(f"own{number}", retention_ms="7", segment_ms="1000")
        worked_out.clear()
        assert await wire.alter(BROKER, "", ("log.retention.ms", SET, "5000")) == 0
        assert sorted(map(len, worked_out)) == [0, 2]
        found = {record.name.rstrip("0123456789"): record.config.retention_ms for record in gateway.parts.topics}
        assert found == {"plain": 5000, "own": 7}


class Patient(Pace):
    """Lets the others come in wherever it may be time to."""

    async def pause(self) -> None:
        await anyio.lowlevel.checkpoint()


async def test_what_is_done_to_topics_while_a_setting_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others come in between: nothing that they make, change or remove keeps the old setting."""
    monkeypatch.setattr("kclient.gateway.topics.settings.Pace", Patient)
    async with running(f"memory:{next(names)}") as (gateway, wire):
        topics, catalogue, changed = gateway.parts.topics, gateway.parts.catalogue, anyio.Event()
        for number in range(200):
            await catalogue.create(f"t{number}")
        assert await wire.alter(TOPIC, "t150", ("segment.ms", SET, "1000")) == 0

        async def change() -> None:
            await gateway.parts.dynamic.alter(lambda now: {**now, "log.retention.ms": "5000"}, {"log.retention.ms"})
            changed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(change)
            while topics.get("t0").config.retention_ms != 5000:  # type: ignore[union-attr]
                await anyio.lowlevel.checkpoint()
            await catalogue.create("new")
            await catalogue.delete("t199")
            await catalogue.alter("t198", lambda now: {**now, "segment.ms": "2000"})
            assert not changed.is_set()
        assert {record.config.retention_ms for record in topics} == {5000}
        assert [topics.get(name).config.segment_ms for name in ("t150", "t198")] == [1000, 2000]  # type: ignore[union-attr]
        assert topics.get("t199") is None


@pytest.mark.domains
async def test_a_topic_that_cannot_be_told_of_changed_settings_keeps_none_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is deleted while it is told, and the store fails another, which is told when the change is repeated."""
    told: list[tuple[str, int]] = []
    reached, go_on, fails = anyio.Event(), anyio.Event(), True
    configure = MemoryTopic.configure

    async def configured(self: MemoryTopic, settings: TopicSettings) -> None:
        name = self.place.topic.domain
        if name == "a":
            reached.set()
            await go_on.wait()
        elif name == "b" and self.place.topic.name == "0" and fails:
            raise StorageError("it cannot be told")
        await configure(self, settings)
        told.append((str(self.place.topic), settings.segment_bytes))

    monkeypatch.setattr(MemoryTopic, "configure", configured)
    async with running() as (gateway, wire), anyio.create_task_group() as group:
        for name in ("a", "b", "c"):
            await wire.create(name, 2)
            for number in (0, 1):
                await wire.produce(name, batch_of(b"x"), number)
        other, codes = connect(gateway), list[int]()

        async def alter() -> None:
            codes.append(await other.alter(BROKER, "", ("log.segment.bytes", SET, "2000000")))

        group.start_soon(alter)
        with anyio.fail_after(10):
            await reached.wait()
            assert await wire.delete("a") == 0
            go_on.set()
            while not codes:
                await anyio.lowlevel.checkpoint()
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert told == [(name, 2_000_000) for name in ("b:1", "c:0", "c:1")]
        fails = False
        await alter()
        assert codes[1:] == [0]
        assert told[3:] == [("b:0", 2_000_000)]
        await other.aclose()


@pytest.mark.parametrize("made", [False, True])
async def test_settings_that_are_stored_though_the_store_said_otherwise(
    monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    """They are in force at once: the next start would surprise who was told that they are not."""
    url, commit = f"memory:{next(names)}", MemoryManager.commit

    async def losing(self: MemoryManager, writes: Any, *args: Any, **options: Any) -> int:
        version = await commit(self, writes, *args, **options) if made or SETTINGS not in writes else 0
        if SETTINGS in writes:
            raise StorageError("the answer was lost")
        return version

    async with running(url) as (_, wire):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "commit", losing)
            code = await wire.alter(BROKER, "", ("log.retention.ms", SET, "1000"))
        assert code == (0 if made else ErrorCode.KAFKA_STORAGE_ERROR)
        live = (await wire.configs(BROKER, ""))["log.retention.ms"]
        assert live[0] == ("1000" if made else None)
    async with running(url) as (_, wire):
        assert (await wire.configs(BROKER, ""))["log.retention.ms"] == live


@pytest.mark.parametrize("incremental", [True, False])
async def test_a_resource_that_is_named_twice_is_not_changed(incremental: bool) -> None:
    """As in Kafka: nobody could tell which of the two was meant."""
    named = [(TOPIC, "t"), (TOPIC, "u"), (BROKER, "1"), (TOPIC, "t"), (BROKER, "1")]
    values = [("retention.ms", "1000"), ("retention.ms", "2000"), ("num.partitions", "3"), ("retention.ms", "4000")]
    values.append(("num.partitions", "5"))
    request: IncrementalAlterConfigsRequest | AlterConfigsRequest
    if incremental:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequestResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[IncrementalAlterConfigsRequestConfig(name=key, config_operation=SET, value=value)],
                )
                for (kind, name), (key, value) in zip(named, values, strict=True)
            ]
        )
    else:
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsRequestResource(
                    resource_type=kind, resource_name=name, configs=[AlterConfigsRequestConfig(name=key, value=value)]
                )
                for (kind, name), (key, value) in zip(named, values, strict=True)
            ]
        )
    async with running() as (_, wire):
        await wire.create("t")
        await wire.create("u")
        before = await wire.configs(TOPIC, "t"), (await wire.configs(BROKER, "1"))["num.partitions"]
        rows = (await wire(request, 1)).responses
        refused = ErrorCode.INVALID_REQUEST
        assert [row.error_code for row in rows] == [refused, ErrorCode.NONE, refused, refused, refused]
        assert rows[0].error_message == "Each resource must appear at most once."
        assert (await wire.configs(TOPIC, "t"), (await wire.configs(BROKER, "1"))["num.partitions"]) == before
        assert (await wire.configs(TOPIC, "u"))["retention.ms"][0] == "2000"


async def test_throttles_of_moves_can_be_deleted_and_not_set() -> None:
    """`kafka-reassign-partitions.sh --verify` and `--cancel` delete them at every broker."""
    throttles = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    async with running() as (_, wire):
        deleted = [(name, DELETE, None) for name in (*throttles, "replica.alter.log.dirs.io.max.bytes.per.second")]
        assert await wire.alter(BROKER, "1", *deleted) == 0
        for name in throttles:
            assert await wire.alter(BROKER, "1", (name, SET, "1000")) == ErrorCode.INVALID_CONFIG
        assert await wire.alter(BROKER, "1", ("leader.throttled", DELETE, None)) == ErrorCode.INVALID_CONFIG
