"""The file of a Kafka broker, and what a gateway makes of settings that it does not obey."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.errors import ConfigError
from kclient.gateway.config import BrokerConfig
from kclient.gateway.security.listeners import listeners_of
from kclient.gateway.server_properties import read_server_properties
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_brokers import REFUSED, WITHOUT_EFFECT

KRAFT = r"""
# a broker and controller of Kafka 4.3
process.roles=broker,controller
node.id=7
controller.quorum.voters=7@localhost:9093
controller.quorum.bootstrap.servers=localhost:9093
listeners = PLAINTEXT://127.0.0.1:9092, CONTROLLER://127.0.0.1:9093
advertised.listeners=PLAINTEXT://kafka.example.org:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.name.controller.ssl.client.auth=required
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
! told at the default level
metric.reporters=org.example.Reporter
log.dirs=/var/lib/kafka/a,\
         /var/lib/kafka/b
num.partitions:3
auto.create.topics.enable false
offsets.topic.replication.factor=1
log.retention.hours=\
    24
remote.log.storage.system.enable=false
group.coordinator.rebalance.protocols=classic,consumer,streams
broker.rack=R\u00fcck
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(KRAFT, encoding="iso-8859-1")
    return path


def test_the_file_of_a_kraft_broker(properties: Path) -> None:
    found = read_server_properties(properties)
    assert found.log_dirs == "/var/lib/kafka/a,/var/lib/kafka/b"
    config = BrokerConfig(found.settings)
    assert (config.get_int("node.id"), config.get_int("num.partitions")) == (7, 3)
    assert not config.get_bool("auto.create.topics.enable")
    assert config.topic_value("retention.ms", {}) == 24 * 3_600_000
    assert config.get("broker.rack") == "Rück"
    (listener,) = listeners_of(config)
    assert (listener.name, str(listener.address), str(listener.told)) == (
        "PLAINTEXT", "127.0.0.1:9092", "kafka.example.org:9092",
    )  # fmt: skip


def test_what_has_no_effect_is_told_once_by_reasons(properties: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig(read_server_properties(properties).settings)
    with caplog.at_level(logging.INFO, "kclient.gateway"):
        config.tell_without_effect()
    told = {record.levelno: record.getMessage() for record in caplog.records}
    assert len(caplog.records) == 2
    assert "metric.reporters (metrics are served over HTTP" in told[logging.WARNING]
    assert "num.network.threads, num.io.threads (a gateway chooses" in told[logging.INFO]
    for name in ("controller.quorum.voters", "inter.broker.listener.name", "offsets.topic.replication.factor"):
        assert name in told[logging.INFO]
    assert "org.example" not in caplog.text


def test_what_has_no_effect_may_be_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig({"sasl.jaas.config": "hush", "sasl.oauthbearer.client.credentials.client.secret": "hush"})
    with caplog.at_level(logging.DEBUG):
        config.tell_without_effect()
    assert "sasl.jaas.config" in caplog.text
    assert "hush" not in caplog.text


def test_controllers_alone() -> None:
    with pytest.raises(ConfigError, match=r"process\.roles.*a gateway is a broker"):
        BrokerConfig({"process.roles": "controller"})
    config = BrokerConfig({"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"})
    with pytest.raises(ConfigError, match="only listeners for controllers"):
        listeners_of(config)


def test_all_unknown_names_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({"num.partition": 3, "zz.top": 1, "num.io.thread": 8, "num.partitions": 4})
    text = str(caught.value)
    assert "num.partition; did you mean num.partitions?" in text.replace("'", "")
    assert "num.io.thread; did you mean num.io.threads?" in text.replace("'", "")
    assert "zz.top" in text


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_each_refusal_says_what_to_do(name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as caught:
        BrokerConfig({name: "org.example.Unheard"})
    assert REFUSED[name].reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote.log.storage.system.enable", False),
        ("transaction.two.phase.commit.enable", "FALSE"),
        ("unstable.api.versions.enable", "false"),
        ("max.connection.creation.rate", 2147483647),
        ("max.request.partition.size.limit", "2000"),
        ("group.consumer.assignors", "uniform, range"),
        ("group.share.assignors", "simple"),
        ("group.coordinator.rebalance.protocols", "consumer,classic"),
        ("process.roles", "broker"),
        ("create.topic.policy.class.name", ""),
        ("principal.builder.class", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
    ],
)
def test_what_asks_for_nothing_is_accepted(name: str, value: object) -> None:
    BrokerConfig({name: value})


def test_settings_of_plugins() -> None:
    BrokerConfig(
        {"confluent.license.topic": "x", "rsm.config.bucket": "y", "rlmm.config.z": 1, "metrics.jmx.include": ""}
    )


def test_a_name_has_one_meaning() -> None:
    """A setting that comes to be obeyed leaves the tables of those that are not."""
    assert WITHOUT_EFFECT.keys() & BROKER_SETTINGS.keys() == set()
    assert REFUSED.keys() & BROKER_SETTINGS.keys() == {"log.dirs"}
    assert WITHOUT_EFFECT.keys() & REFUSED.keys() == set()


def test_variables_of_the_environment_and_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITIONS", "6")
    (tmp_path / "more.properties").write_text("rack=r1\n")
    path = tmp_path / "server.properties"
    path.write_text(
        "config.providers=env,file\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        "config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
        f"num.partitions=${{env:PARTITIONS}}\nbroker.rack=${{file:{tmp_path / 'more.properties'}:rack}}\n"
    )
    config = BrokerConfig(read_server_properties(path).settings)
    assert (config.get_int("num.partitions"), config.get("broker.rack")) == (6, "r1")


def unreadable(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    yield tmp_path / "missing", "cannot be read"
    yield tmp_path, "cannot be read"
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    yield tmp_path / "large", "more than 1048576 bytes"
    (tmp_path / "escape").write_text("a=1\nb=\\u12\n")
    yield tmp_path / "escape", "line 2"


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, reason in unreadable(tmp_path):
        with pytest.raises(ConfigError, match=reason) as caught:
            read_server_properties(path)
        assert str(path) in str(caught.value)


BOTH = {
    "listeners": "CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_SSL",
    "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-256",
}


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.controller.oauthbearer.sasl.jaas.config",
        "listener.name.controller.principal.builder.class",
        "listener.name.controller.sasl.server.callback.handler.class",
        "ssl.keystore.location",
    ],
)
def test_settings_of_controllers_listeners_are_left_out(name: str) -> None:
    (found,) = listeners_of(BrokerConfig({**BOTH, name: "/nowhere"}))
    assert found.name == "CLIENTS"


@pytest.mark.parametrize(
    "name", ["num.network.threads", "ssl.allow.dn.changes", "sasl.login.class", "gssapi.sasl.jaas.config"]
)
def test_what_has_no_effect_has_none_for_one_listener(name: str, caplog: pytest.LogCaptureFixture) -> None:
    name = f"listener.name.clients.{name}"
    config = BrokerConfig({**BOTH, name: "hush"})
    assert listeners_of(config)
    with caplog.at_level(logging.INFO):
        config.tell_without_effect()
    assert f"{name} (" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max.connections", "3", "gateways have max.connections for all listeners together"),
        ("sasl.server.max.receive.size", "3", "sasl.server.max.receive.size for all listeners together"),
        ("principal.builder.class", "org.example.Builder", "ssl.principal.mapping.rules says"),
        ("plain.sasl.server.callback.handler.class", "org.example.Users", "it is a class of Java's"),
        ("max.connection.creation.rate", "-1", "a number of connections up to"),
        ("sasl.jaas.config", "hush", "is no setting of a listener"),
        ("unheard.of", "hush", "is no setting of a listener"),
    ],
)
def test_what_one_listener_cannot_have_says_why(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"listener.name.clients.{name}.*{told}") as caught:
        listeners_of(BrokerConfig({**BOTH, f"listener.name.clients.{name}": value}))
    assert "hush" not in str(caught.value)
