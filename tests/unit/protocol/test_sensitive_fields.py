"""Sensitive fields are shown nowhere: neither by messages nor by generic structs, nor by the errors of both."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kclient.errors import KafkaError, ProtocolError
from kclient.protocol import ApiMessage, Message, Struct, schema_of
from kclient.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    IncrementalAlterConfigsRequest,
    SaslAuthenticateRequest,
)
from kclient.protocol.schema import BYTES, ArrayType, Field, StructType, field
from tests.protocol_values import TOP_LEVEL, versions_of

SECRET = "dr0wss4p"


def paths(fields: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    """The way to every sensitive field."""
    for item in fields:
        kind = item.type
        while isinstance(kind, ArrayType):
            kind = kind.element
        if item.sensitive:
            yield (item,)
        elif isinstance(kind, StructType):
            yield from ((item, *path) for path in paths(kind.message.FIELDS))


SENSITIVE = [(message, path) for message in TOP_LEVEL for path in paths(message.FIELDS)]
EVERY_ONE = pytest.mark.parametrize(
    ("message", "path"), SENSITIVE, ids=lambda x: x.__name__ if isinstance(x, type) else ".".join(i.name for i in x)
)


def filled(message: type[Message], path: tuple[Field, ...], value: Any, make: Callable[..., Any]) -> Any:
    """A value with this in the sensitive field, made of messages or plain mappings."""
    item, *rest = path
    kind = item.type
    if rest:
        inside = kind.element if isinstance(kind, ArrayType) else kind
        assert isinstance(inside, StructType)
        value = filled(inside.message, tuple(rest), value, make)
        value = [value] if isinstance(kind, ArrayType) else value
    return make(message, {item.name: value})


def as_message(message: type[Message], values: dict[str, Any]) -> Message:
    return message(**values)


def as_mapping(message: type[Message], values: dict[str, Any]) -> dict[str, Any]:
    return {item.name: item.new_default() for item in message.FIELDS} | values


def everything(error: BaseException) -> str:
    """What a tool may print of an error: texts and reprs, also of what hangs on it."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and found not in seen:
            seen.append(found)
            waiting += [found.__cause__, found.__context__]
    return "\n".join([*traceback.format_exception(error), *map(repr, seen), *map(str, seen)])


def test_what_is_sensitive() -> None:
    assert {f"{message.__name__}.{path[-1].name}" for message, path in SENSITIVE} == {
        "SaslAuthenticateRequest.auth_bytes",
        "SaslAuthenticateResponse.auth_bytes",
        "AlterConfigsRequest.value",
        "IncrementalAlterConfigsRequest.value",
        "AlterUserScramCredentialsRequest.salt",
        "AlterUserScramCredentialsRequest.salted_password",
        "CreateDelegationTokenResponse.hmac",
        "RenewDelegationTokenRequest.hmac",
        "ExpireDelegationTokenRequest.hmac",
        "DescribeDelegationTokenResponse.hmac",
    }


@EVERY_ONE
def test_reprs(message: type[ApiMessage], path: tuple[Field, ...]) -> None:
    value = SECRET if path[-1].type.name == "string" else SECRET.encode()
    given = filled(message, path, value, as_message)
    for version in versions_of(message):
        struct = schema_of(message, version).decode(given.encode(version))
        plain = filled(message, path, value, as_mapping)
        generic = Struct(schema_of(message, version), {name: plain[name] for name in struct})
        for shown in (repr(given), repr(struct), repr(generic), str(struct), f"{generic}"):
            assert SECRET not in shown
            assert f"{path[-1].name!s}" in shown
            assert "<hidden>" in shown
        assert SECRET in repr(struct.as_dict())  # who asks for the values gets them


@EVERY_ONE
@pytest.mark.parametrize("make", [as_message, as_mapping])
def test_values_of_a_wrong_type(message: type[ApiMessage], path: tuple[Field, ...], make: Callable[..., Any]) -> None:
    wrong: list[Any] = [SECRET.encode(), [SECRET], f"{SECRET}\udcff"]
    for value in wrong[1:] if path[-1].type.name == "bytes" else wrong:
        given = filled(message, path, value, make)
        version = versions_of(message)[-1]
        with pytest.raises(ValueError, match=path[-1].name) as caught:
            schema_of(message, version).encode(given)
        assert SECRET not in everything(caught.value)
        if isinstance(given, ApiMessage):
            with pytest.raises(ValueError, match=path[-1].name) as caught:
                given.encode(version)
            assert SECRET not in everything(caught.value)


def test_a_mapping_where_a_list_belongs() -> None:
    resource = {"resource_type": 2, "resource_name": "", "configs": {"ssl.key.password": SECRET}}
    for schema in (schema_of(AlterConfigsRequest, 1), schema_of(IncrementalAlterConfigsRequest, 1)):
        with pytest.raises(ValueError, match=r"configs: expected a list") as caught:
            schema.encode({"resources": [resource], "validate_only": False})
        assert SECRET not in everything(caught.value)
    assert SECRET not in repr(Struct(schema, {"resources": [resource]}))
    for wrong in (SECRET, SECRET.encode(), [SECRET]):
        assert SECRET not in repr(Struct(schema, {"resources": wrong}))


def test_a_field_that_the_version_lacks() -> None:
    class Token(Message):
        hmac: bytes = field(BYTES, "1+", sensitive=True)

    schema = schema_of(Token, 0, flexible=False)
    with pytest.raises(KafkaError, match=r"has no field hmac \(it has value <hidden>\), only 1\+"):
        schema.encode(Token(hmac=SECRET.encode()))


@pytest.mark.parametrize(
    "read", [AlterConfigsRequest.decode, lambda data, v: schema_of(AlterConfigsRequest, v).decode(data)]
)
def test_bytes_that_are_no_text(read: Callable[[bytes, int], object]) -> None:
    config = AlterConfigsRequestConfig(name="password", value=SECRET)
    good = AlterConfigsRequest(resources=[AlterConfigsRequestResource(configs=[config])]).encode(0)
    with pytest.raises(ProtocolError, match=r"configs\[0\]\.value: a text is not valid UTF-8") as caught:
        read(good.replace(SECRET.encode(), SECRET[:-1].encode() + b"\xff"), 0)
    assert SECRET[:-1] not in everything(caught.value)


def test_what_is_no_secret_is_shown() -> None:
    config = AlterConfigsRequestConfig(name="retention.ms", value=None)
    assert repr(config) == "AlterConfigsRequestConfig(name='retention.ms', value=None)"
    shown = repr(schema_of(SaslAuthenticateRequest, 0).decode(bytes(4)))
    assert shown == "SaslAuthenticateRequest(auth_bytes=b'')"
