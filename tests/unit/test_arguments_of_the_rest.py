"""What is public beside the calls of clients, with arguments of every kind: values and what calls hand out, gateways,
the helpers for tests, the options of Spark. And nothing public is left out of all these tests."""

from __future__ import annotations

import importlib
import inspect
import json
import uuid
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kclient
import kclient.sync
from kclient import OAuthToken, TopicPartition
from kclient.arguments import shown
from kclient.config import (
    AdminConfig,
    ClientConfig,
    ConfigProvider,
    ConsumerConfig,
    ProducerConfig,
    Setting,
    ShareConsumerConfig,
    parse_properties,
)
from kclient.errors import ConfigError, IllegalStateError, KafkaError
from kclient.metrics import (
    Metric,
    MetricName,
    Metrics,
    MetricsReporter,
    OpenTelemetryReporter,
    PrometheusReporter,
)
from kclient.schema_registry import RegisteredSchema, SchemaReference, SchemaRegistry
from kclient.spark import (
    ArchivedTopic,
    ArchiveSummary,
    AuditReport,
    CompactSummary,
    ExpirySummary,
    GroupsMirrored,
    KclientDataSource,
    KeyShare,
    KeyStats,
    LagListener,
    MirrorSummary,
    PartitionStats,
    QueryLag,
    ReplaySummary,
    StatsReport,
    TopicAt,
    TopicExpiry,
    TopicMirror,
    TopicReplay,
    TopicSummary,
    archive,
    audit,
    compact,
    compacted_table,
    expire_archive,
    from_registry,
    mirror,
    register,
    replay,
    stats,
)
from kclient.spark.options import BATCH_OPTIONS, STREAMING_OPTIONS
from kclient.testing import memory_broker
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from kclient.testing.faults import FaultyStream
from tests.example_budget import examples
from tests.hostile_values import Shown, edges, floats, odd, texts
from tests.unit.arguments_of_clients import CLIENTS, parameters, public_calls
from tests.unit.test_arguments_by_the_hundred import SERIALIZERS, attempt

# Python's word to whoever writes such a pattern
pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")

# ------------------------------------------------------------------ what is tried here

CLUSTERS_SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
SESSION = SimpleNamespace(sparkContext=None, conf={"spark.sql.parquet.compression.codec": "none such"})
"""A Spark session with which no archive gets as far as to ask a broker."""
NO_MODE: Any = "none such"
"""With which no registry is asked."""
TOKEN = OAuthToken(value="x")  # type: ignore[arg-type]
RECORDS = kclient.ConsumerRecords({TopicPartition("t", 0): ()})


async def once(cancelled: Cancelled) -> None:
    await cancelled(anyio.lowlevel.checkpoint())


def entered(value: Any) -> None:
    with memory_broker(value):
        pass


def archived(tmp: Path, **given: Any) -> Any:
    return archive(
        **{"spark": SESSION, "destination": tmp / "to", "settings": CLUSTERS_SETTINGS, "topics": ["t"], **given}
    )


def replayed(tmp: Path, **given: Any) -> Any:
    return replay(**{"spark": SESSION, "source": tmp / "from", "settings": CLUSTERS_SETTINGS, **given})


def mirrored(**given: Any) -> Any:
    """With settings of a target that are refused when all else was looked at, before a broker is asked."""
    return mirror(**{"spark": SESSION, "source": CLUSTERS_SETTINGS, "target": {}, "topics": ["t"], **given})


def audited(**given: Any) -> Any:
    side = TopicAt("t", CLUSTERS_SETTINGS)
    return audit(**{"spark": object(), "left": side, "right": side, **given})


def counted(**given: Any) -> Any:
    return stats(**{"spark": object(), "source": TopicAt("t", CLUSTERS_SETTINGS), **given})


def compacted(tmp: Path, **given: Any) -> Any:
    return compact(**{"spark": object(), "source": TopicAt("t", CLUSTERS_SETTINGS), "destination": tmp / "to", **given})


TRIED: dict[str, tuple[Any, Callable[[Any, Path], Any]]] = {
    "AdminConfig": (AdminConfig, lambda value, _: AdminConfig.parse(value)),
    "ClientConfig": (ClientConfig, lambda value, _: ClientConfig.parse(value)),
    "ConsumerConfig": (ConsumerConfig, lambda value, _: ConsumerConfig.parse(value)),
    "ShareConsumerConfig": (ShareConsumerConfig, lambda value, _: ShareConsumerConfig.parse(value)),
    "ProducerConfig": (ProducerConfig, lambda value, _: ProducerConfig.parse(value)),
    "parse_properties": (parse_properties, lambda value, _: parse_properties(value)),
    "records of a partition": (kclient.ConsumerRecords, lambda value, _: RECORDS.records(value)),
    "from_jwt(text)": (OAuthToken, lambda value, _: OAuthToken.from_jwt(value)),
    "from_jwt(scope_claim)": (OAuthToken, lambda value, _: OAuthToken.from_jwt("x.e30.x", scope_claim=value)),
    "from_jwt(subject_claim)": (OAuthToken, lambda value, _: OAuthToken.from_jwt("x.e30.x", subject_claim=value)),
    "ending_in": (OAuthToken, lambda value, _: TOKEN.ending_in(value)),
    "with_extensions": (OAuthToken, lambda value, _: TOKEN.with_extensions(value)),
    "memory_broker": (memory_broker, lambda value, _: entered(value)),
    "Cancelled": (Cancelled, lambda value, _: Cancelled(value)),
    "at_every_checkpoint(scenario)": (at_every_checkpoint, lambda value, _: anyio.run(at_every_checkpoint, value)),
    "at_every_checkpoint(limit)": (
        at_every_checkpoint,
        lambda value, _: anyio.run(partial(at_every_checkpoint, limit=value), once),
    ),
    **{
        f"FaultyStream({name})": (
            FaultyStream,
            lambda value, _, name=name: FaultyStream(object(), **{name: value}),  # type: ignore[arg-type]
        )
        for name in inspect.signature(FaultyStream).parameters
        if name != "stream"
    },
    **{
        f"MetricName({name})": (
            MetricName,
            lambda value, _, name=name: MetricName(**{"name": "n", "group": "g", name: value}),
        )
        for name in inspect.signature(MetricName).parameters
    },
    **{
        f"Metric({name})": (
            Metric,
            lambda value, _, name=name: Metric(**{"name": MetricName("n", "g"), "measure": float, name: value}),
        )
        for name in inspect.signature(Metric).parameters
    },
    "PrometheusReporter": (PrometheusReporter, lambda value, _: PrometheusReporter(value)),
    "OpenTelemetryReporter": (OpenTelemetryReporter, lambda value, _: OpenTelemetryReporter(value)),
    "register": (register, lambda value, _: register(value)),
    "archive(spark)": (archive, lambda value, tmp: archived(tmp, spark=value)),
    "archive(destination)": (archive, lambda value, tmp: archived(tmp, destination=value, settings={})),
    "archive(settings)": (archive, lambda value, tmp: archived(tmp, settings=value)),
    "archive(topics)": (archive, lambda value, tmp: archived(tmp, topics=value)),
    "archive(pattern)": (archive, lambda value, tmp: archived(tmp, topics=(), pattern=value)),
    "archive(fail_on_data_loss)": (archive, lambda value, tmp: archived(tmp, fail_on_data_loss=value)),
    "archive(restart_recreated)": (archive, lambda value, tmp: archived(tmp, restart_recreated=value)),
    "archive(max_offsets)": (archive, lambda value, tmp: archived(tmp, max_offsets=value)),
    "archive(min_partitions)": (archive, lambda value, tmp: archived(tmp, min_partitions=value)),
    "archive(compression)": (archive, lambda value, tmp: archived(tmp, compression=value)),
    "archive(compression_level)": (
        archive,
        lambda value, tmp: archived(tmp, compression_level=value),
    ),
    "archive(file_size)": (archive, lambda value, tmp: archived(tmp, file_size=value)),
    "archive(row_group_size)": (
        archive,
        lambda value, tmp: archived(tmp, row_group_size=value),
    ),
    "archive(partition_by)": (archive, lambda value, tmp: archived(tmp, partition_by=value)),
    "archive(dry_run)": (archive, lambda value, tmp: archived(tmp, dry_run=value, settings={})),
    "expire_archive(destination)": (expire_archive, lambda value, _: expire_archive(value, 0)),
    "expire_archive(older_than)": (expire_archive, lambda value, tmp: expire_archive(tmp, value)),
    "expire_archive(topics)": (expire_archive, lambda value, tmp: expire_archive(tmp, 0, topics=value)),
    "expire_archive(dry_run)": (expire_archive, lambda value, tmp: expire_archive(tmp, 0, dry_run=value)),
    "expire_archive(progress)": (expire_archive, lambda value, tmp: expire_archive(tmp, 0, progress=value)),
    "archive(progress)": (archive, lambda value, tmp: archived(tmp, progress=value)),
    "SchemaRegistry": (SchemaRegistry, lambda value, _: SchemaRegistry(value)),
    "from_registry(registry)": (from_registry, lambda value, _: from_registry("value", value, "s", mode=NO_MODE)),
    **{
        f"from_registry({name})": (
            from_registry,
            lambda value, _, name=name: from_registry(
                **{"column": "value", "registry": "http://127.0.0.1:1", "subject": "s", "mode": NO_MODE, name: value}
            ),
        )
        for name in ("column", "subject", "version", "schema_id", "message", "mode")
    },
    **{
        f"replay({name})": (replay, lambda value, tmp, name=name: replayed(tmp, **{name: value}))  # type: ignore[arg-type]
        for name in inspect.signature(replay).parameters
    },
    **{
        f"mirror({name})": (mirror, lambda value, _, name=name: mirrored(**{name: value}))  # type: ignore[arg-type]
        for name in inspect.signature(mirror).parameters
    },
    **{
        f"audit({name})": (audit, lambda value, _, name=name: audited(**{name: value}))  # type: ignore[arg-type]
        for name in inspect.signature(audit).parameters
    },
    **{
        f"stats({name})": (stats, lambda value, _, name=name: counted(**{name: value}))  # type: ignore[arg-type]
        for name in inspect.signature(stats).parameters
    },
    **{
        f"compact({name})": (compact, lambda value, tmp, name=name: compacted(tmp, **{name: value}))  # type: ignore[arg-type]
        for name in inspect.signature(compact).parameters
        if name != "dry_run"  # any value is true or false, and then the brokers are asked
    },
    "compacted_table": (compacted_table, lambda value, _: compacted_table(value)),
    "TopicAt(topic)": (TopicAt, lambda value, _: audited(left=TopicAt(value, CLUSTERS_SETTINGS))),
    "TopicAt(settings)": (TopicAt, lambda value, _: audited(left=TopicAt("t", value))),
    "ArchivedTopic(folder)": (ArchivedTopic, lambda value, _: audited(left=ArchivedTopic(value, "t"))),
    "ArchivedTopic(topic)": (ArchivedTopic, lambda value, tmp: audited(left=ArchivedTopic(tmp, value))),
    "KclientDataSource": (KclientDataSource, lambda value, _: KclientDataSource(value).schema()),
    "LagListener": (LagListener, lambda value, _: LagListener(value)),
    "KclientDataSource.streamReader": (
        KclientDataSource,
        lambda value, _: KclientDataSource({"kafka.bootstrap.servers": "x:1", "subscribe": "t"}).streamReader(value),
    ),
    "KclientDataSource.writer": (
        KclientDataSource,
        lambda value, _: KclientDataSource({"kafka.bootstrap.servers": "x:1", "topic": "t"}).writer(value, False),
    ),
    "KclientDataSource.reader": (
        KclientDataSource,
        lambda value, _: KclientDataSource({"kafka.bootstrap.servers": "x:1", "subscribe": "t"}).reader(value),
    ),
}
"""Each call with the public object that it belongs to."""


@pytest.mark.parametrize("call", TRIED)
def test_calls(call: str, tmp_path: Path) -> None:
    function = TRIED[call][1]

    @settings(examples(60), suppress_health_check=list(HealthCheck))
    @given(odd.map(Shown))
    def one(value: Shown) -> None:
        attempt(f"{call}: {value!r}", lambda: function(value.value, tmp_path))

    one()


# ------------------------------------------------------------------ the options of Spark

jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**64) | floats | texts,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(texts | st.sampled_from(["0", "1", "-1", "١"]), inner, max_size=2)
    ),
    max_leaves=4,
).map(json.dumps)
offsets = st.tuples(
    st.sampled_from(["t", "", "\ud800", "a/b", "x" * 300]),
    st.sampled_from(["0", "-1", "x", "١", str(2**31), "9" * 5000]),
    st.sampled_from(["0", "-2", "-3", "1.5", "true", str(2**63), "9" * 4000, "9" * 5000, "NaN", "null"]),
)
option_texts = st.one_of(
    texts,
    edges.filter(lambda number: abs(number) < 10**100).map(str),
    floats.map(str),
    jsons,
    offsets.map(lambda parts: json.dumps({parts[0]: {parts[1]: 7}}).replace("7", parts[2])),
    offsets.map(lambda parts: json.dumps({parts[0]: [7]}).replace("7", parts[2])),
    st.sampled_from(["[" * 100_000, "9" * 5000, "(", "(" * 5000, "a{1,9999999999999999999}", "١", "1_000", "t,,", ","]),
)
OPTIONS = [
    *BATCH_OPTIONS, *STREAMING_OPTIONS, *(f"kafka.{name}" for name in ConsumerConfig.settings()), "bogus", "\ud800",
    "x" * 5000,
]  # fmt: skip


def by_option(count: int) -> None:
    @settings(examples(count), suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(OPTIONS), (option_texts | odd).map(Shown))
    def one(name: str, value: Shown) -> None:
        options: dict[str, Any] = {"kafka.bootstrap.servers": "127.0.0.1:1", name: value.value}
        if name not in ("assign", "subscribePattern"):
            options.setdefault("subscribe", "t")
        attempt(f"{shown(name)}={value!r}", lambda: KclientDataSource(options).schema())

    one()


def test_options_of_spark() -> None:
    by_option(400)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_options_of_spark() -> None:
    by_option(50_000)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"assign": "[" * 100_000}, r"the option assign takes JSON such as .*maximum recursion"),
        ({"assign": '{"t":[4294967296]}'}, "names partition 4294967296; the greatest is 2147483647"),
        ({"assign": '{"\\ud800":[0]}'}, "the option assign: a topic's name is text that UTF-8 can carry"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":9223372036854775808}}'}, "greatest is 9223372036854775807"),
        ({"subscribe": "t", "startingTimestamp": "9223372036854775808"}, "must be at most 9223372036854775807"),
        ({"subscribe": "t", "minPartitions": "x" * 5000}, r"^the option minPartitions takes a whole .{,300}$"),
        ({"subscribe": "t", "minPartitions": 4}, "options are text, not 'minPartitions': 4"),
        ({"subscribePattern": "a("}, "the option subscribePattern is not a regular expression: 'a\\('"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        KclientDataSource({"kafka.bootstrap.servers": "x:1", **options}).schema()


@pytest.mark.parametrize("topics", [["t", 5], 5, ["a,b"], ["\ud800"], "t"])
def test_topics_of_an_archive_that_are_none(topics: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError, KafkaError), match=r"topic"):
        archived(tmp_path, topics=topics)


@pytest.mark.parametrize("destination", [None, 5, b"folder", ["folder"]])
def test_destinations_that_are_none(destination: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="the archive's destination is a path"):
        archived(tmp_path, destination=destination)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ values, and what calls hand out

VALUES: dict[type, dict[str, Any]] = {
    kclient.ConfigResource: {"type": kclient.ConfigResourceType.TOPIC, "name": "t"},
    kclient.ConsumerRecord: {
        "topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestamp_type": 0, "key": None, "value": None
    },
    kclient.ConsumerRecords: {},
    kclient.NewTopic: {"name": "t"},
    kclient.Node: {"id": 1, "host": "h", "port": 1},
    kclient.OAuthToken: {"value": "x"},
    kclient.OffsetAndMetadata: {"offset": 1},
    kclient.OffsetAndTimestamp: {"offset": 1, "timestamp": 1},
    kclient.PartitionInfo: {"topic": "t", "partition": 0, "leader": None},
    kclient.ProducerRecord: {"topic": "t"},
    kclient.RecordMetadata: {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0},
    kclient.TopicPartition: {"topic": "t", "partition": 0},
}  # fmt: skip


@settings(examples(300), suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(list(VALUES)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.sampled_from(list(inspect.signature(kind).parameters)))
    ),
    odd.map(Shown),
)
def test_values(of: tuple[type, str], value: Shown) -> None:
    """What cannot be in them is refused by them, or by the call that they are given to."""
    kind, name = of
    attempt(f"{kind.__name__}({name}={value!r})", lambda: kind(**{**VALUES[kind], name: value.value}))


@pytest.mark.slow
@settings(examples(100), suppress_health_check=list(HealthCheck))
@given(odd.filter(lambda value: not isinstance(value, int | float)).map(Shown))
def test_waiting_for_deliveries(value: Shown) -> None:
    with memory_broker() as address, kclient.sync.Producer(bootstrap_servers=address) as producer:
        delivery = producer.send("t", b"v", partition=0)
        deliveries = producer.send_batch("t", [b"v"], partition=0)
        attempt(f"Delivery.result({value!r})", lambda: delivery.result(value.value))
        attempt(f"Deliveries.result({value!r})", lambda: deliveries.result(value.value))
        assert delivery.result(5).offset == 0


# ------------------------------------------------------------------ gateways


@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["address", "advertise", "metrics", "health", "reload"]),
    odd.filter(lambda value: not isinstance(value, int | float)).map(Shown),
)
def test_a_running_gateway(name: str, value: Shown) -> None:
    async def main() -> None:
        async with kclient.Gateway(f"memory:{uuid.uuid4().hex}", None) as gateway:
            if name == "metrics":
                await gateway.serve_metrics(value.value)
            elif name == "health":
                await gateway.serve_health(value.value)
            elif name == "reload":
                await gateway.reload(value.value)
            else:
                await gateway.listen(**{"address": "127.0.0.1:0", name: value.value})
            assert gateway.failure is None

    attempt(f"listen({name}={value!r})", lambda: anyio.run(main))


@pytest.mark.parametrize("gateway", [kclient.Gateway, kclient.sync.Gateway])
def test_a_gateway_that_was_not_started(gateway: Any) -> None:
    waiting = gateway("memory:unused", None)
    with pytest.raises(IllegalStateError, match="has not been started"):
        anyio.run(waiting.wait) if gateway is kclient.Gateway else waiting.wait()


# ------------------------------------------------------------------ nothing is left out

MODULES = [
    "kclient", "kclient.config", "kclient.metrics", "kclient.schema_registry", "kclient.serialization", "kclient.spark",
    "kclient.sync", "kclient.testing", "kclient.testing.cancellation", "kclient.testing.faults",
]  # fmt: skip
ELSEWHERE = {
    *CLIENTS.values(), *SERIALIZERS, kclient.Gateway, kclient.sync.Gateway, kclient.serialization.resolve_serializer,
    kclient.serialization.resolve_deserializer,
}  # fmt: skip
"""Tried by `test_arguments_by_the_hundred`."""
FOR_USERS_TO_MAKE = {
    kclient.Assignor, kclient.ConsumerInterceptor, kclient.Deserializer, kclient.Partitioner,
    kclient.ProducerInterceptor, kclient.RebalanceListener, kclient.Serializer, ConfigProvider, MetricsReporter,
}  # fmt: skip
ONLY_HANDED_OUT = {
    ArchiveSummary,
    ExpirySummary,
    TopicExpiry,
    Metrics,
    QueryLag,
    RegisteredSchema,
    SchemaReference,
    TopicSummary,
    Setting,
    kclient.Deliveries,
    kclient.Delivery,
    kclient.PartitionWatermarks,
    ReplaySummary,
    TopicReplay,
    MirrorSummary,
    TopicMirror,
    GroupsMirrored,
    AuditReport,
    CompactSummary,
    KeyShare,
    KeyStats,
    PartitionStats,
    StatsReport,
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_nothing_public_is_left_out(module: str) -> None:
    found = importlib.import_module(module)
    tried = {*(of for of, _ in TRIED.values()), *VALUES, *ELSEWHERE, *FOR_USERS_TO_MAKE, *ONLY_HANDED_OUT}
    for name in found.__all__:
        value = getattr(found, name)
        if not callable(value) or (isinstance(value, type) and issubclass(value, Enum | BaseException)):
            continue
        if getattr(value, "__module__", "").startswith("kclient"):
            assert value in tried, f"{module}.{name} is tried nowhere"


def test_every_call_of_a_gateway_is_tried() -> None:
    taking = {method for method in public_calls(kclient.Gateway) if parameters(kclient.Gateway, method)}
    assert taking == {"close", "connect_stream", "listen", "reload", "serve_health", "serve_metrics"}
