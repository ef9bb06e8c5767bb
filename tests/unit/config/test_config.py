"""Reading the settings of the three clients."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from kclient.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig
from kclient.config.names import LIBRDKAFKA
from kclient.config.setting import Password
from kclient.errors import ConfigError, NotYetSupportedError
from kclient.producer.settings import ProducerSettings

CLIENTS = [ProducerConfig, ConsumerConfig, ShareConsumerConfig, AdminConfig]
ROOT = Path(__file__).resolve().parents[3]


def producer(config: Any = None, **settings: Any) -> ProducerConfig:
    return ProducerConfig.parse(config, **{"bootstrap_servers": "localhost:9092", **settings})


def consumer(config: Any = None, **settings: Any) -> ConsumerConfig:
    return ConsumerConfig.parse(config, **{"bootstrap_servers": "localhost:9092", **settings})


def test_defaults() -> None:
    config = producer()
    assert config.bootstrap_servers == ("localhost:9092",)
    assert (config.acks, config.linger_ms, config.batch_size, config.enable_idempotence) == (-1, 5, 16384, True)
    assert config.explicit == {"bootstrap.servers"}
    assert config.default_api_timeout_ms == config.max_block_ms == 60_000
    mine = consumer(group_id="g")
    assert (mine.enable_auto_commit, mine.auto_offset_reset, mine.max_poll_records) == (True, "latest", 500)
    assert mine.partition_assignment_strategy == ("range", "cooperative-sticky")
    admin = AdminConfig.parse(bootstrap_servers="a:1")
    assert admin.connections_max_idle_ms == 300_000


def test_every_way_to_give_settings(tmp_path: Path) -> None:
    expected = producer(bootstrap_servers="a:1,b:2", linger_ms=7, compression_type="zstd")
    file = tmp_path / "producer.properties"
    file.write_text("# mine\nbootstrap.servers=a:1, \\\n  b:2\nlinger.ms = 7\ncompression.type: ZSTD\n")
    for config in (
        ProducerConfig.parse(bootstrap_servers=["a:1", "b:2"], linger_ms="7", compression_type="zstd"),
        ProducerConfig.parse({"bootstrap.servers": "a:1,b:2", "linger.ms": 7, "compression.type": "zstd"}),
        ProducerConfig.parse({"bootstrap_servers": ("a:1", "b:2"), "linger_ms": 7}, compression_type="ZSTD"),
        ProducerConfig.parse(file),
        ProducerConfig.parse(str(file)),
        ProducerConfig.parse(file.read_text()),
        ProducerConfig.parse("bootstrap.servers=a:1,b:2", linger_ms=7, compression_type="zstd"),
    ):
        assert config == expected


def test_arguments_count_more_than_the_file() -> None:
    assert producer("linger.ms=7\nbatch.size=1", linger_ms=9).linger_ms == 9
    assert producer("linger.ms=7\nbatch.size=1", linger_ms=9).batch_size == 1
    assert producer("linger.ms=7\nbatch.size=1", linger_ms=None).linger_ms == 7


def test_none_means_the_default() -> None:
    assert producer(linger_ms=None).linger_ms == 5
    assert "linger.ms" not in producer(linger_ms=None).explicit


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties cannot be read: No such file"):
        ProducerConfig.parse(str(tmp_path / "nowhere.properties"))
    with pytest.raises(ConfigError, match="cannot be read"):
        ProducerConfig.parse(tmp_path)
    latin = tmp_path / "latin.properties"
    latin.write_bytes("client.id=B\u00fccher".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.properties cannot be read: 'utf-8'"):
        ProducerConfig.parse(latin)
    with pytest.raises(ConfigError, match="cannot be read: embedded null"):
        ProducerConfig.parse("a\0b")


@pytest.mark.parametrize("cls", CLIENTS)
def test_bootstrap_servers_are_needed(cls: type[ClientConfig]) -> None:
    for nothing in ({}, {"bootstrap.servers": ""}, {"bootstrap.servers": []}, {"bootstrap.servers": None}):
        with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
            cls.parse(nothing)


def test_given_twice() -> None:
    with pytest.raises(ConfigError, match=r"linger\.ms is given twice"):
        producer({"linger.ms": 1, "linger_ms": 2})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lingr_ms", "did you mean linger.ms?"),
        ("linger", "did you mean linger.ms?"),
        ("batchsize", "did you mean batch.size?"),
        ("timeout_ms_request", "did you mean request.timeout.ms?"),
        ("bootstrap_server", "did you mean bootstrap.servers?"),
        ("group_id", "it belongs to the consumer"),
        ("default.api.timeout.ms", "it belongs to the consumer and the admin client"),
        ("queue.buffering.max.ms", "librdkafka's name; Kafka's is linger.ms"),
        ("queue_buffering_max_ms", "librdkafka's name; Kafka's is linger.ms"),
        ("api_version", "versions are always asked for"),
        ("spring.kafka.producer.acks", "Kafka's is what follows"),
        ("message.timeout.ms", "Kafka's is delivery.timeout.ms"),
        ("metadata.broker.list", "Kafka's is bootstrap.servers"),
        ("broker.address.family", "IPv6 and IPv4"),
        ("stats_cb", "metrics()"),
        ("socket.blocking.max.ms", "leave it out"),
        ("frobnicate", "Kafka's names"),
    ],
)
def test_unknown_names_are_explained(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        producer({name: "1"})
    assert str(caught.value).startswith(f"{name} is not a setting of the producer")
    assert hint in str(caught.value)


def test_names_of_librdkafka_lead_to_settings() -> None:
    known = {name for cls in CLIENTS for name in cls.settings()}
    for name, ours in LIBRDKAFKA.items():
        assert name not in known, name
        for each in filter(None, ours.replace(" or ", ", ").split(", ")):
            assert each in known, (name, each)


def test_a_number_that_is_too_large_for_a_fraction() -> None:
    with pytest.raises(ConfigError, match=r"expected number from 0\.5 to 1"):
        ProducerConfig.parse({"bootstrap.servers": "a:1", "sasl.login.refresh.window.factor": 10**400})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("linger.ms", "x", "whole number, 0 or more"),
        ("linger.ms", -1, "whole number, 0 or more"),
        ("linger.ms", 1.5, "whole number"),
        ("linger.ms", True, "whole number"),
        ("max.request.size", 2**31, "whole number, 0 or more, and 2147483647 at most"),
        ("linger.ms", 2**63, "whole number, 0 or more, and 9223372036854775807 at most"),
        ("linger.ms", "1_0", "whole number, 0 or more"),
        ("compression.gzip.level", 0, "whole number, 1 to 9, or -1"),
        ("compression.type", "lzma", "one of `none`, `gzip`, `snappy`, `lz4`, `zstd`"),
        ("acks", 2, "one of `all`, `-1`, `0`, `1`"),
        ("acks", True, "one of"),
        ("enable.idempotence", "yes", "true or false"),
        ("enable.idempotence", 1, "true or false"),
        ("client.id", 3, "text"),
        ("bootstrap.servers", 9092, "list, or text with commas"),
        ("bootstrap.servers", b"a:1", "list, or text with commas"),
        ("bootstrap.servers", [9092], "list, or text with commas"),
        ("transactional.id", b"x", "text that is not empty"),
        ("partitioner.class", "com.example.Mine", "roundrobin"),
        ("partitioner.class", 7, "a partitioner or its class"),
        ("interceptor.classes", "com.example.Mine", "a producer interceptor or its class"),
        ("sasl.login.refresh.window.factor", 0.1, "number from 0.5 to 1"),
        ("sasl.login.refresh.window.factor", False, "number from 0.5 to 1"),
    ],
)
def test_values_that_are_not_allowed(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.parse({"bootstrap.servers": "a:1", name: value})
    assert str(caught.value).startswith(f"{name} = {value!r}: expected ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.mechanism",
        "sasl.login.refresh.window.factor",
        "sasl.oauthbearer.header.urlencode",
        "sasl.kerberos.service.name",
        "sasl.login.callback.handler.class",
        "ssl.protocol",
        "ssl.keystore.type",
    ],
)
def test_a_password_in_the_wrong_place_is_not_shown(name: str) -> None:
    """One line up or down in a file of settings, and it stands where a mechanism should."""
    with pytest.raises((ConfigError, NotYetSupportedError)) as caught:
        ProducerConfig.parse({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", name: "geheim"})
    error: BaseException | None = caught.value
    assert name in str(error)
    while error is not None:
        assert "geheim" not in repr(error) + str(error)
        error = error.__cause__


def test_passwords_are_not_shown() -> None:
    for value in (5, "geheim"):
        with pytest.raises((ConfigError, NotYetSupportedError)) as caught:
            producer({"ssl.key.password": value})
        assert str(value) not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"), [("all", -1), ("-1", -1), (-1, -1), ("ALL", -1), (0, 0), ("1", 1), (1, 1)]
)
def test_acks(given: Any, expected: int) -> None:
    assert producer(acks=given).acks == expected


def test_classes_and_objects() -> None:
    class Mine:
        pass

    mine = Mine()
    config = producer(
        partitioner_class="org.apache.kafka.clients.producer.RoundRobinPartitioner",
        key_serializer="org.apache.kafka.common.serialization.StringSerializer",
        value_serializer=Mine,
        interceptor_classes=[mine, Mine],
    )
    assert config.partitioner_class == "roundrobin"
    assert (config.key_serializer, config.value_serializer) == ("string", Mine)
    assert config.interceptor_classes == (mine, Mine)
    assert producer(interceptor_classes=mine).interceptor_classes == (mine,)
    assert producer(partitioner_class="RoundRobinPartitioner").partitioner_class == "roundrobin"
    default = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
    assert ProducerSettings.of(producer(partitioner_class=default)).partitioner is None
    assert producer(partitioner_class="").partitioner_class is None
    text = "org.apache.kafka.clients.consumer.RangeAssignor, org.apache.kafka.clients.consumer.StickyAssignor"
    assert consumer({"partition.assignment.strategy": text}).partition_assignment_strategy == ("range", "sticky")
    assert consumer(partition_assignment_strategy=mine).partition_assignment_strategy == (mine,)
    assert consumer(partition_assignment_strategy=["roundrobin", Mine]).partition_assignment_strategy == (
        "roundrobin",
        Mine,
    )


@pytest.mark.parametrize("cls", CLIENTS)
def test_what_is_not_served_is_never_accepted_and_ignored(cls: type[ClientConfig]) -> None:
    other: dict[type, Any] = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v, str: None}
    tried = 0
    for name, item in cls.settings().items():
        base = {"bootstrap.servers": "a:1"}
        if item.served and item.served_values is None:
            continue
        if not item.required:
            cls.parse({**base, name: item.default})  # writing the default is no request for anything
        value: Any = (getattr(item.kind, "choices", ()) or [None])[-1]
        if value is None or value == item.default:
            value = (getattr(item.kind, "choices", ()) or [None])[0]
        if isinstance(item.default, bool | int | float) and not isinstance(item.default, str):
            value = other[type(item.default)](item.default)
            if isinstance(item.default, float):
                value = 0.1 if "jitter" in name else 0.75
        elif value is None:
            value = "5" if "timeout.ms" in name else "something"
        with pytest.raises(NotYetSupportedError, match=name):
            cls.parse({**base, name: value})
        tried += 1
    assert tried > 30


def test_security_is_named() -> None:
    with pytest.raises(NotYetSupportedError, match=r"sasl\.mechanism = GSSAPI .* is not supported yet; set .* PLAIN"):
        producer(security_protocol="sasl_plaintext")
    assert producer(security_protocol="plaintext").security_protocol == "PLAINTEXT"


@pytest.mark.parametrize(
    ("name", "value"),
    [("session.timeout.ms", 10_000), ("heartbeat.interval.ms", 100), ("partition.assignment.strategy", "range")],
)
def test_settings_of_the_classic_protocol_alone(name: str, value: Any) -> None:
    """As in the Java client: the broker has them else."""
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} cannot be set with group\.protocol=consumer: "):
        consumer({name: value}, group_id="g", group_protocol="CONSUMER")
    assert consumer({name: value}, group_id="g", group_protocol="classic").group_protocol == "classic"


def test_settings_of_the_consumer_protocol_alone() -> None:
    with pytest.raises(ConfigError, match=r"group\.remote\.assignor cannot be set with group\.protocol=classic"):
        consumer(group_id="g", group_remote_assignor="uniform")
    assert consumer(group_id="g", group_remote_assignor="").group_remote_assignor is None
    found = consumer(group_id="g", group_protocol="Consumer", group_remote_assignor="uniform", group_instance_id="one")
    assert (found.group_protocol, found.group_remote_assignor) == ("consumer", "uniform")


@pytest.mark.parametrize(
    "settings", [{"acks": 1}, {"acks": "0"}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}]
)
def test_idempotence_gives_way_unless_it_is_asked_for(settings: dict[str, Any]) -> None:
    assert not producer(**settings).enable_idempotence
    assert not producer(**settings, enable_idempotence=False).enable_idempotence
    with pytest.raises(ConfigError, match=r"enable\.idempotence=true contradicts"):
        producer(**settings, enable_idempotence=True)


def test_delivery_timeout() -> None:
    assert producer().delivery_timeout_ms == 120_000
    assert producer(linger_ms=100_000).delivery_timeout_ms == 130_000
    assert producer(request_timeout_ms=200_000).delivery_timeout_ms == 200_005
    assert producer(linger_ms=2**40).delivery_timeout_ms == 2**31 - 1
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms = 1000 is less than .* = 30005"):
        producer(delivery_timeout_ms=1000)


def test_auto_commit_needs_a_group() -> None:
    assert not consumer().enable_auto_commit
    assert consumer(group_id="g").enable_auto_commit
    with pytest.raises(ConfigError, match=r"needs a group\.id"):
        consumer(enable_auto_commit=True)


def test_heartbeats_fit_into_the_session() -> None:
    with pytest.raises(
        ConfigError, match=r"heartbeat\.interval\.ms = 3000 must be less than session\.timeout\.ms = 3000"
    ):
        consumer(session_timeout_ms=3000)


def test_assignors_are_needed() -> None:
    with pytest.raises(ConfigError, match="names no assignor"):
        consumer(partition_assignment_strategy=[])


@pytest.mark.parametrize("value", ["earliest", "LATEST", "none", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S"])
def test_offset_reset(value: str) -> None:
    config = consumer(auto_offset_reset=value)
    assert config.auto_offset_reset == (value if value.startswith("by") else value.lower())


@pytest.mark.parametrize("value", ["smallest", "by_duration:", "by_duration:1h", "by_duration:P", "by_duration:PT", 1])
def test_offset_reset_that_is_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="`latest`, `earliest`, `none`"):
        consumer(auto_offset_reset=value)


def test_replace() -> None:
    config = producer(linger_ms=7)
    changed = config.replace(batch_size=1, linger_ms=8)
    assert (changed.linger_ms, changed.batch_size, changed.bootstrap_servers) == (8, 1, ("localhost:9092",))
    assert config.linger_ms == 7
    with pytest.raises(ConfigError):
        config.replace(batch_size="x")
    assert producer(linger_ms=100_000).replace(linger_ms=200_000).delivery_timeout_ms == 230_000


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        producer().linger_ms = 3  # type: ignore[misc]


@pytest.mark.parametrize("cls", CLIENTS)
def test_declarations(cls: type[ClientConfig]) -> None:
    """Each default is a value that its own kind gives, each description a sentence, each attribute typed."""
    annotations = inspect.get_annotations(cls) | inspect.get_annotations(ClientConfig)
    assert annotations
    for name, item in cls.settings().items():
        assert item.name == name
        assert item.doc.endswith("."), name
        assert not item.doc.endswith(".."), name
        if not item.required and item.default is not None:
            assert item.kind.parse(item.default) == item.default, name
            if not isinstance(item.default, tuple):
                assert (
                    item.kind.parse(str(item.default).lower() if item.default in (True, False) else str(item.default))
                    == item.default
                ), name
        if "password" in name or "secret" in name or "passphrase" in name:
            assert isinstance(item.kind, Password), name


def test_reference_is_up_to_date() -> None:
    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    script = ROOT / "docs" / "generate" / "client_settings.py"
    assert text == runpy.run_path(str(script))["render"](), f"run: python {script} > docs/reference/settings.md"


ROOMS = {
    ProducerConfig: ["producer", "cluster", "metrics", "net", "sync"],
    ConsumerConfig: ["consumer", "cluster", "metrics", "net", "sync"],
    ShareConsumerConfig: ["consumer", "cluster", "metrics", "net", "sync"],
    AdminConfig: ["admin", "cluster", "metrics", "net", "sync"],
}


@pytest.mark.parametrize("cls", CLIENTS)
def test_served_settings_are_read_somewhere(cls: type[ClientConfig]) -> None:
    """A setting that nothing reads would be accepted and ignored."""
    sources = [path.read_text() for room in ROOMS[cls] for path in (ROOT / "kclient" / room).rglob("*.py")]
    sources += [
        (ROOT / "kclient" / "config" / name).read_text()
        for name in ("tls_context.py", "sasl_credentials.py", "providers.py")
    ]
    unread = [
        name
        for name, item in cls.settings().items()
        if item.served
        and item.served_values is None
        and not any(item.attribute in source or f'"{name}"' in source for source in sources)
    ]
    assert unread == []


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"enable.idempotence": False}, "enable.idempotence=false"),
        ({"acks": "1"}, "acks=1"),
        ({"retries": 0}, "retries=0"),
        ({"max.in.flight.requests.per.connection": 6}, "max.in.flight"),
    ],
)
def test_transactions_need_idempotence(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=f"transactional.id needs idempotence.*{names}"):
        ProducerConfig.parse({"bootstrap.servers": "a:1", "transactional.id": "x", **settings})


def test_a_two_phase_commit_is_refused_with_its_reason() -> None:
    with pytest.raises(NotYetSupportedError, match="no stable version"):
        ProducerConfig.parse({"bootstrap.servers": "a:1", "transaction.two.phase.commit.enable": True})
