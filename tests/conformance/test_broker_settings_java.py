"""The gateway's settings beside those of a broker of Kafka 4.3.1: names, defaults, ranges, and when they change."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from kclient.config.setting import Boolean, Decimal, List, Number, Password
from kclient.gateway.dynamic_config import READ_ONLY
from kclient.gateway.setting import BrokerSetting, GzipLevel
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_brokers import REFUSED, WITHOUT_EFFECT
from kclient.gateway.settings_of_groups import GROUP_SETTINGS
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "BrokerSettingsOracle.java"

OWN = {
    "connections.max.memory.bytes", "group.max.metadata.bytes", "log.dir.min.free.bytes",
    "message.max.decompressed.bytes", "metrics.partitions.enable", "producer.id.cache.size", "telemetry.max.series",
}  # fmt: skip
"""Those that only gateways have."""
OF_THE_AUTHORIZER = {"allow.everyone.if.no.acl.found", "super.users"}
"""Those that Kafka's authorizer has, and its broker does not define."""
OF_EARLIER_RELEASES = {
    "broker.id.generation.enable", "control.plane.listener.name", "controlled.shutdown.max.retries",
    "controlled.shutdown.retry.backoff.ms", "inter.broker.protocol.version",
    "leader.imbalance.per.broker.percentage", "log.message.downconversion.enable", "log.message.format.version",
    "log.message.timestamp.difference.max.ms", "reserved.broker.max.id", "zookeeper.connect",
    "zookeeper.connection.timeout.ms", "zookeeper.max.in.flight.requests", "zookeeper.metadata.migration.enable",
    "zookeeper.session.timeout.ms", "zookeeper.set.acl",
}  # fmt: skip
RESOLVED = {"config.providers"}
"""What is obeyed before anything else, and is no setting of the table."""

DEFAULTS = {
    "controller.listener.names": "a gateway has no controllers",
    "node.id": "Kafka has no default",
    "sasl.enabled.mechanisms": "gateways do not have GSSAPI",
    "ssl.keystore.type": "gateways do not read JKS",
    "ssl.truststore.type": "gateways do not read JKS",
}
"""Whose defaults are others, and why."""
SET_BY_RESTARTS_HERE = {
    "listener.security.protocol.map", "listeners", "log.cleaner.enable", "sasl.enabled.mechanisms",
    "ssl.cipher.suites", "ssl.client.auth", "ssl.enabled.protocols", "ssl.key.password",
    "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location", "ssl.keystore.password",
    "ssl.keystore.type", "ssl.protocol", "ssl.truststore.certificates", "ssl.truststore.location",
    "ssl.truststore.password", "ssl.truststore.type",
}  # fmt: skip
"""What Kafka's brokers change while they run, and gateways do not. Certificates are read again when files change."""


class Java(NamedTuple):
    kind: str
    default: str
    validator: str
    mode: str


@pytest.fixture(scope="module")
def answers(kafka_jars_4: Path) -> dict[str, dict[str, Java]]:
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, dict[str, Java]] = {"broker": {}, "topic": {}, "group": {}}
    for line in result.stdout.splitlines():
        of, name, kind, default, validator, mode, _ = line.split("\t")
        found[of][name] = Java(kind, default, validator, mode)
    assert len(found["broker"]) > 300
    return found


def test_every_setting_of_a_broker_is_known(answers: dict[str, dict[str, Java]]) -> None:
    known = {*BROKER_SETTINGS, *WITHOUT_EFFECT, *REFUSED, *RESOLVED}
    assert sorted(answers["broker"].keys() - known) == []
    assert known - answers["broker"].keys() == OWN | OF_THE_AUTHORIZER | OF_EARLIER_RELEASES


def test_settings_of_topics_and_groups(answers: dict[str, dict[str, Java]]) -> None:
    assert answers["topic"].keys() - TOPIC_SETTINGS.keys() == {"internal.segment.bytes"}
    assert TOPIC_SETTINGS.keys() <= answers["topic"].keys()
    left = answers["group"].keys() - GROUP_SETTINGS.keys()
    assert left == {name for name in left if name.endswith(".assignor.offload.enable")}, (
        "assignments are always computed off the loop"
    )
    assert GROUP_SETTINGS.keys() <= answers["group"].keys()
    wrong = {
        name: problem
        for name, java in answers["topic"].items()
        if (problem := difference(TOPIC_SETTINGS.get(name), java))
    }
    assert wrong == {}


def test_defaults_kinds_and_ranges(answers: dict[str, dict[str, Java]]) -> None:
    wrong = {
        name: problem
        for name, java in answers["broker"].items()
        if (problem := difference(BROKER_SETTINGS.get(name), java))
    }
    assert {name for name, problem in wrong.items() if problem.startswith("default")} == DEFAULTS.keys()
    assert {name: problem for name, problem in wrong.items() if not problem.startswith("default")} == RANGES


RANGES = {"max.connections": "from 1, in Java [0,...]"}
"""Whose kinds or ranges are others: with 0 connections nobody could come in."""


def test_what_is_changed_while_it_runs(answers: dict[str, dict[str, Java]]) -> None:
    """Gateways change more of them than brokers do; what they do not is listed."""
    obeyed = {name: java for name, java in answers["broker"].items() if name in BROKER_SETTINGS}
    assert {name for name, java in obeyed.items() if java.mode != "read-only" and name in READ_ONLY} <= (
        SET_BY_RESTARTS_HERE
    )


def difference(ours: BrokerSetting | None, java: Java) -> str | None:
    if ours is None:
        return None
    default = "<null>" if ours.default is None else ours.default
    if default.lower() != java.default.lower():
        return f"default {default!r}, in Java {java.default!r}"
    kinds = {
        "BOOLEAN": Boolean,
        "INT": Number,
        "LONG": Number,
        "SHORT": Number,
        "DOUBLE": Decimal,
        "PASSWORD": Password,
        "LIST": List,
    }
    expected = kinds.get(java.kind)
    if expected is not None and not isinstance(ours.kind, expected):
        return f"{type(ours.kind).__name__}, in Java {java.kind}"
    if isinstance(ours.kind, GzipLevel):
        return None if java.validator == "[1,...,9] or -1" else f"{ours.kind.text}, in Java {java.validator}"
    if isinstance(ours.kind, Number):
        found = re.match(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?", java.validator)
        if found is not None and ours.kind.low != int(found[1]):
            return f"from {ours.kind.low}, in Java {java.validator}"
        if found is not None and found[2] is not None and ours.kind.high != int(found[2]):
            return f"to {ours.kind.high}, in Java {java.validator}"
    return None
