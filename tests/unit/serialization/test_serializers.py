"""Serializers and deserializers: bytes, errors, and how settings name them."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient import serialization
from kclient.errors import ConfigError, SerializationError
from kclient.serialization import (
    Deserializer,
    JsonDeserializer,
    JsonSerializer,
    Serializer,
    StringDeserializer,
    StringSerializer,
    resolve_deserializer,
    resolve_serializer,
)
from kclient.serialization.resolve import DESERIALIZER_NAMES, SERIALIZER_NAMES

INT = st.integers
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(),
    "json": st.recursive(
        st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
    "integer": INT(-(2**31), 2**31 - 1),
    "long": INT(-(2**63), 2**63 - 1),
    "short": INT(-(2**15), 2**15 - 1),
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "boolean": st.booleans(),
    "uuid": st.uuids(),
    "bytes": st.binary(),
}


def serialize(name: Any, value: Any) -> bytes | None:
    serializer = resolve_serializer(name)
    data = value if serializer is None else serializer.serialize("t", value)
    return None if data is None else bytes(data)


def deserialize(name: Any, data: Any) -> Any:
    deserializer = resolve_deserializer(name)
    return data if deserializer is None else deserializer.deserialize("t", data)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_what_is_written_is_read_back(name: str) -> None:
    @given(VALUES[name])
    def check(value: Any) -> None:
        data = serialize(name, value)
        assert data is not None
        assert deserialize(name, data) == value
        assert deserialize(name, memoryview(data)) == value

    check()


@pytest.mark.parametrize("name", sorted(SERIALIZER_NAMES))
def test_nulls_stay_nulls(name: str) -> None:
    assert SERIALIZER_NAMES[name]().serialize("t", None) is None
    assert DESERIALIZER_NAMES[name]().deserialize("t", None) is None


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("string", "grün", "grün".encode()),
        ("json", {"b": [1, None], "a": "ü"}, '{"b":[1,null],"a":"ü"}'.encode()),
        ("integer", -2, b"\xff\xff\xff\xfe"),
        ("long", 1, b"\0\0\0\0\0\0\0\1"),
        ("short", 258, b"\1\2"),
        ("double", 1.5, struct.pack(">d", 1.5)),
        ("double", 2, struct.pack(">d", 2)),
        ("float", 1.5, struct.pack(">f", 1.5)),
        ("boolean", True, b"\1"),
        ("uuid", UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
    ],
)
def test_bytes(name: str, value: Any, data: bytes) -> None:
    assert serialize(name, value) == data


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("string", b"x", "expected text, not bytes"),
        ("string", "\ud800", "cannot be encoded"),
        ("json", {1, 2}, "cannot be written as JSON"),
        ("json", float("nan"), "cannot be written as JSON"),
        ("integer", 2**31, "does not fit"),
        ("integer", "1", "expected a whole number of 4 bytes, not str"),
        ("integer", True, "not bool"),
        ("integer", 1.0, "not float"),
        ("long", 2**63, "does not fit"),
        ("short", -(2**15) - 1, "does not fit"),
        ("float", 1e300, "does not fit"),
        ("double", 10**400, "does not fit"),
        ("double", "1", "not str"),
        ("boolean", 1, "not int"),
        ("uuid", "x", "expected a UUID"),
        ("void", 1, "expected None"),
    ],
)
def test_what_cannot_be_written(name: str, value: Any, reason: str) -> None:
    with pytest.raises(SerializationError) as caught:
        serialize(name, value)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("t: ")


def test_bytes_serializer_says_what_helps() -> None:
    assert serialization.BytesSerializer().serialize("t", memoryview(b"x")) == b"x"
    with pytest.raises(SerializationError, match="value_serializer='string'"):
        serialization.BytesSerializer().serialize("t", "text")  # type: ignore[arg-type]
    assert serialization.BytesDeserializer().deserialize("t", memoryview(b"x")) == b"x"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("string", b"\xff", "not text in utf-8"),
        ("json", b"{", "not JSON"),
        ("json", b"\xff", "not JSON"),
        ("integer", b"123", "has 4 bytes, these are 3"),
        ("long", b"1234", "has 8 bytes, these are 4"),
        ("boolean", b"\2", "0 or 1"),
        ("boolean", b"", "0 or 1"),
        ("uuid", b"x", "not a UUID"),
        ("uuid", b"\xff", "not a UUID"),
        ("void", b"", "expected a null"),
    ],
)
def test_what_cannot_be_read(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(SerializationError) as caught:
        deserialize(name, data)
    assert reason in str(caught.value)


def test_encoding_and_sorting() -> None:
    assert StringSerializer("latin-1").serialize("t", "ü") == b"\xfc"
    assert StringDeserializer("latin-1").deserialize("t", b"\xfc") == "ü"
    assert JsonSerializer(sort_keys=True).serialize("t", {"b": 1, "a": 2}) == b'{"a":2,"b":1}'
    value = uuid4()
    assert JsonSerializer(default=str).serialize("t", [value]) == f'["{value}"]'.encode()
    assert JsonDeserializer().deserialize("t", b"null") is None


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, None),
        ("bytes", None),
        (bytes, None),
        (bytearray, None),
        ("org.apache.kafka.common.serialization.ByteArraySerializer", None),
        ("org.apache.kafka.common.serialization.ByteBufferSerializer", None),
        ("org.apache.kafka.common.serialization.BytesSerializer", None),
        (str, "StringSerializer"),
        ("str", "StringSerializer"),
        (" String ", "StringSerializer"),
        ("StringSerializer", "StringSerializer"),
        ("org.apache.kafka.common.serialization.StringSerializer", "StringSerializer"),
        ("org.apache.kafka.common.serialization.LongSerializer", "LongSerializer"),
        ("int", "IntegerSerializer"),
        ("json", "JsonSerializer"),
        (bool, "BooleanSerializer"),
        (StringSerializer, "StringSerializer"),
        (JsonSerializer(sort_keys=True), "JsonSerializer"),
    ],
)
def test_names_of_serializers(given_: Any, expected: str | None) -> None:
    found = resolve_serializer(given_)
    assert (None if found is None else type(found).__name__) == expected
    assert found is None or isinstance(found, Serializer)


def test_instances_are_taken_as_they_are() -> None:
    serializer = JsonSerializer()
    assert resolve_serializer(serializer) is serializer
    deserializer = JsonDeserializer()
    assert resolve_deserializer(deserializer) is deserializer
    assert isinstance(resolve_deserializer(str), Deserializer)
    assert type(resolve_deserializer("org.apache.kafka.common.serialization.LongDeserializer")).__name__ == (
        "LongDeserializer"
    )


def test_functions() -> None:
    assert serialize(str.encode, "x") == b"x"
    assert serialize(lambda value: b"<%s>" % value, b"x") == b"<x>"
    assert serialize(lambda value: b"never", None) is None
    assert serialize(lambda topic, value, headers: f"{topic}{value}{headers}".encode(), None) == b"tNone()"
    assert deserialize(len, b"abc") == 3
    assert deserialize(lambda data: "never", None) is None
    assert deserialize(lambda topic, data, headers: (topic, data), None) == ("t", None)


def test_what_names_no_serializer() -> None:
    class Empty:
        pass

    class NeedsArguments:
        def __init__(self, url: str) -> None:
            self.url = url

        def serialize(self, topic: str, value: Any, headers: Any = ()) -> bytes:
            return b""

    for value, reason in [
        ("sting", "did you mean 'string'"),
        ("io.confluent.kafka.serializers.KafkaAvroSerializer", "others are passed as objects"),
        (int, "'long', 'integer' or 'short'"),
        (float, "'double' or 'float'"),
        (Empty, "the class Empty has no method serialize"),
        (Empty(), "has no method serialize(topic, …, headers) and is not a function"),
        (NeedsArguments, "pass an instance"),
        (5, "no method"),
    ]:
        with pytest.raises(ConfigError) as caught:
            resolve_serializer(value, "value.serializer")
        assert str(caught.value).startswith("value.serializer: ")
        assert reason in str(caught.value)
    assert resolve_serializer(NeedsArguments("http://x")) is not None


def test_everything_is_exported() -> None:
    for name in serialization.__all__:
        assert hasattr(serialization, name)
    classes = {cls.__name__ for cls in [*SERIALIZER_NAMES.values(), *DESERIALIZER_NAMES.values()]}
    assert classes <= set(serialization.__all__)
