"""Settings and serializers beside the Java client's own: names, defaults, ranges, bytes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from kclient.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, Setting, ShareConsumerConfig
from kclient.config.java import DESERIALIZERS, SERIALIZERS
from kclient.config.setting import Boolean, Choice, Number
from kclient.serialization import resolve_deserializer, resolve_serializer

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "SettingsOracle.java"
CLIENTS: dict[str, type[ClientConfig]] = {"producer": ProducerConfig, "consumer": ConsumerConfig, "admin": AdminConfig}

REQUIRED_IN_JAVA = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"}
"""Without these kclient leaves keys and values as bytes."""


@pytest.fixture(scope="module")
def answers(kafka_jars_4: Path) -> list[list[str]]:
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [line.split("\t") for line in result.stdout.splitlines()]


@pytest.mark.parametrize("client", CLIENTS)
def test_settings(client: str, answers: list[list[str]]) -> None:
    java = {name: rest for kind, which, name, *rest in answers if kind == "setting" and which == client}
    ours = {name: item for name, item in CLIENTS[client].settings().items() if not item.own}
    if client == "consumer":  # Java's has those of share consumers, too
        ours |= {name: item for name, item in ShareConsumerConfig.settings().items() if name.startswith("share.")}
    assert sorted(ours) == sorted(java)
    wrong = {name: problem for name, facts in java.items() if (problem := differences(ours[name], *facts))}
    assert wrong == {}


def differences(ours: Setting, kind: str, default: str, validator: str) -> str | None:
    if default == "<required>":
        return None if ours.required or ours.name in REQUIRED_IN_JAVA else "required in Java"
    expected = ours.java_default if ours.differs_from_java else ours.default
    if ours.required:
        return None if default == "" else "required here only"
    if _text(ours, expected) != _java_text(default):
        return f"default {expected!r}, in Java {default!r}"
    if ours.differs_from_java and expected == ours.default:
        return "said to differ from Java, and does not"
    return _kind_difference(ours, kind, validator)


def _text(ours: Setting, value: object) -> str:
    if isinstance(ours.kind, Choice) and ours.kind.meanings is not None:
        value = next(word for word, meaning in ours.kind.meanings.items() if meaning == value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)).lower()
    return "<null>" if value is None else str(value).lower()


def _java_text(default: str) -> str:
    for name in ("RangeAssignor", "CooperativeStickyAssignor"):
        short = {"RangeAssignor": "range", "CooperativeStickyAssignor": "cooperative-sticky"}[name]
        default = default.replace(f"class org.apache.kafka.clients.consumer.{name}", short)
    return default.lower()


def _kind_difference(ours: Setting, kind: str, validator: str) -> str | None:
    if (kind == "BOOLEAN") != isinstance(ours.kind, Boolean):
        return f"a {kind} in Java"
    if kind in ("INT", "LONG", "SHORT") and not isinstance(ours.kind, Number):
        return f"a {kind} in Java"
    if isinstance(ours.kind, Number):
        low = re.match(r"\[(-?\d+),", validator)
        if low is not None and ours.kind.low != int(low[1]):
            return f"from {ours.kind.low}, in Java {validator}"
    if isinstance(ours.kind, Choice) and "[" in validator:
        words = sorted(word.strip().lower() for word in validator[validator.index("[") + 1 : -1].split(","))
        if words != sorted(word.lower() for word in ours.kind.choices):
            return f"{ours.kind.text}, in Java {validator}"
    return None


def test_serializers(answers: list[list[str]]) -> None:
    checked = 0
    for kind, name, shown, data in (line for line in answers if line[0] == "bytes"):
        assert kind == "bytes"
        value = {
            "boolean": lambda text: text == "true",
            "uuid": UUID,
            "string": str,
            "float": float,
            "double": float,
        }.get(name, int)(shown)
        serializer, deserializer = resolve_serializer(name), resolve_deserializer(name)
        assert serializer is not None
        assert deserializer is not None
        assert bytes(serializer.serialize("topic", value) or b"").hex() == data
        back = deserializer.deserialize("topic", bytes.fromhex(data))
        assert back == pytest.approx(value, rel=1e-7) if name == "float" else back == value
        checked += 1
    assert checked == 34


@pytest.mark.parametrize("java", [name for name in {**SERIALIZERS, **DESERIALIZERS} if "apache" in name])
def test_the_java_classes_exist(java: str, kafka_jars_4: Path) -> None:
    import zipfile

    (jar,) = kafka_jars_4.glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as content:
        assert java.replace(".", "/") + ".class" in content.namelist()
