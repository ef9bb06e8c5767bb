"""Finding messages by API, agreeing on versions, and reading messages without their classes."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol import (
    ApiKey,
    EncodeError,
    Schema,
    Struct,
    Versions,
    messages,
    negotiate,
    request_class,
    request_schema,
    response_class,
    response_schema,
    schema_of,
)
from kclient.protocol.codec import source_of
from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.messages import FetchRequest, MetadataRequest, MetadataRequestTopic, MetadataResponse
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import FLOAT64, INT32, UINT32, UVARINT, VARINT, VARLONG

NEWEST = MetadataRequest.VERSIONS.high


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_every_api_has_its_messages(key: ApiKey) -> None:
    request, response = request_class(key), response_class(key)
    assert request.API_KEY == response.API_KEY == key
    assert request.VERSIONS == response.VERSIONS
    assert request.__name__ == f"{key.message_name}Request"
    assert getattr(messages, response.__name__) is response
    assert request.__doc__
    assert response.__doc__


def test_messages_lists_what_it_has() -> None:
    names = dir(messages)
    assert messages.__all__ == names
    everything: dict[str, object] = {}
    exec("from kclient.protocol.messages import *", everything)
    assert set(names) == everything.keys() - {"__builtins__"}
    families = sorted(path.stem for path in Path(messages.__file__).parent.glob("[a-z]*.py"))
    assert (
        sorted(name for family in families for name in import_module(f"{messages.__name__}.{family}").__all__) == names
    )
    assert "FetchRequest" in names
    assert "FetchRequestTopic" in names
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = messages.Nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", [path.stem for path in Path(messages.__file__).parent.glob("[a-z]*.py")])
def test_each_family_lists_its_messages(family: str) -> None:
    module = import_module(f"{messages.__name__}.{family}")
    declared = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    assert declared == set(module.__all__)


def test_type_checkers_see_the_same_families() -> None:
    """What stands below TYPE_CHECKING is not run: each family is there three times."""
    tree = ast.parse(Path(messages.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    families = {path.stem for path in Path(messages.__file__).parent.glob("[a-z]*.py")}
    names = [ast.unparse(node) for node in block.body]
    assert {ast.unparse(node.value) for node in block.body if isinstance(node, ast.AugAssign)} == {
        f"{family}.__all__" for family in families
    }
    assert {name for name in names if name.endswith("import *")} == {
        f"from kclient.protocol.messages.{family} import *" for family in families
    }


def test_messages_are_loaded_when_asked_for() -> None:
    script = (
        "import sys, kclient.protocol.messages as m; before = set(sys.modules); m.AlterConfigsRequest;"
        "print(sorted(x.rpartition('.')[2] for x in set(sys.modules) - before if x.startswith(m.__name__)));"
        "print('inspect' in before)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[0] == "['acls', 'configs']"


# --- constructors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_constructors_have_a_signature(key: ApiKey) -> None:
    for cls in (request_class(key), response_class(key)):
        parameters = inspect.signature(cls).parameters
        assert list(parameters) == [item.name for item in cls.FIELDS]
        assert cls(**{name: parameter.default for name, parameter in parameters.items()}) == cls()
        assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())


def test_help_shows_the_signature() -> None:
    text = pydoc.render_doc(MetadataRequest, renderer=pydoc.plaintext)
    assert "MetadataRequest(*, topics: 'list[MetadataRequestTopic] | None' = []" in text
    MetadataRequest()  # which writes the constructor
    assert str(inspect.signature(MetadataRequest)).startswith("(*, topics: ")


def test_unknown_apis() -> None:
    with pytest.raises(UnsupportedVersionError, match="9999"):
        request_class(9999)
    with pytest.raises(UnsupportedVersionError, match="9999"):
        negotiate(9999, {9999: (0, 1)})
    with pytest.raises(UnsupportedVersionError, match=f"0-{NEWEST}"):
        request_schema(ApiKey.METADATA, 99)


# --- negotiation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "version"),
    [
        ((0, 5), None, 5),
        ((0, 99), None, NEWEST),
        ((4, 12), (0, 7), 7),
        ((7, 9), (7, 7), 7),
        ((0, 99), (3, 99), NEWEST),  # more than kclient has: clipped
    ],
)
def test_the_highest_common_version(theirs: tuple[int, int], ours: tuple[int, int] | None, version: int) -> None:
    assert negotiate(ApiKey.METADATA, {ApiKey.METADATA: theirs}, ours) == version


@pytest.mark.parametrize(("theirs", "ours"), [((90, 99), None), ((0, 3), (4, 9))])
def test_no_common_version_names_both_ranges(theirs: tuple[int, int], ours: tuple[int, int] | None) -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        negotiate(ApiKey.METADATA, {ApiKey.METADATA: theirs}, ours)
    assert "METADATA" in str(caught.value)
    assert str(Versions(*theirs)) in str(caught.value)
    assert str(Versions(*(ours or (0, NEWEST)))) in str(caught.value)


def test_a_range_of_ours_that_kclient_lacks_altogether() -> None:
    with pytest.raises(UnsupportedVersionError, match=f"METADATA in versions 0-{NEWEST}, but was told to use 90-95"):
        negotiate(ApiKey.METADATA, {ApiKey.METADATA: (0, 99)}, (90, 95))


def test_an_api_that_the_broker_lacks() -> None:
    with pytest.raises(UnsupportedVersionError, match="SHARE_FETCH"):
        negotiate(ApiKey.SHARE_FETCH, {ApiKey.METADATA: (0, 1)})


@pytest.mark.parametrize(("text", "low", "high"), [("0-13", 0, 13), ("9+", 9, 32767), ("4", 4, 4), ("none", 0, -1)])
def test_versions(text: str, low: int, high: int) -> None:
    versions = Versions.parse(text)
    assert versions == (low, high)
    assert str(versions) == text
    assert (low in versions) == bool(versions)
    assert high + 1 not in versions
    assert "low" not in versions


# --- generic structs -----------------------------------------------------------------------------------------


def test_any_request_as_a_generic_struct() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    struct = request_schema(ApiKey.METADATA, 12).decode(request.encode(12))
    assert struct["allow_auto_topic_creation"] is False
    assert [topic["name"] for topic in struct["topics"]] == ["t"]
    assert struct.as_dict()["topics"] == [{"topic_id": bytes(16), "name": "t"}]
    assert "include_cluster_authorized_operations" not in struct
    assert "name='t'" in repr(struct)


def test_a_generic_struct_keeps_unknown_tagged_fields() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    request.topics[0].unknown_tagged_fields = {9: b"nine"}  # type: ignore[index]
    request.unknown_tagged_fields = {70_000: b""}
    schema = request_schema(ApiKey.METADATA, 12)
    struct = schema.decode(request.encode(12))
    assert struct.unknown_tagged_fields == [(70_000, b"")]
    assert struct["topics"][0].unknown_tagged_fields == [(9, b"nine")]
    assert schema.encode(struct) == request.encode(12)


def test_building_a_generic_struct() -> None:
    schema = response_schema(ApiKey.METADATA, 12)
    struct = Struct(schema, {"cluster_id": "c", "brokers": [{"node_id": 1, "host": "h", "port": 2, "rack": None}]})
    decoded = MetadataResponse.decode(schema.encode(struct), 12)
    assert (decoded.cluster_id, decoded.brokers[0].host, decoded.controller_id) == ("c", "h", -1)
    with pytest.raises(EncodeError, match="Metadata v12 response: no field 'nonsense'"):
        Struct(schema, {"nonsense": 1})
    with pytest.raises(ValueError, match=r"brokers\[0\]\.port"):
        schema.encode(Struct(schema, {"brokers": [{"node_id": 1, "host": "h", "port": "x", "rack": None}]}))


def test_nested_structs_have_defaults() -> None:
    struct = Struct(request_schema(ApiKey.FETCH, 15))
    assert struct["replica_state"].as_dict() == {"replica_id": -1, "replica_epoch": -1}
    assert FetchRequest.decode(request_schema(ApiKey.FETCH, 15).encode(struct), 15) == FetchRequest()


def test_a_generic_struct_from_malformed_bytes() -> None:
    schema = request_schema(ApiKey.METADATA, 0)
    for data in (b"", b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\0\0\0\0x", b"\xff\xff\xff\xfe"):
        with pytest.raises(ProtocolError):
            schema.decode(data)
    assert isinstance(schema, Schema)
    assert "topics" in repr(schema)


# --- the language beyond what Kafka's messages use -----------------------------------------------------------


class Point(Message):
    """A struct of this test."""

    x: int = field(VARINT)
    y: int = field(VARLONG)


class Everything(ApiMessage, versions="0-1", flexible="1+"):
    """Types that Kafka's messages do not use, or not in this place."""

    point: Point = field(Point)
    count: int = field(UVARINT)
    many: list[int] = field(ArrayOf(VARINT))
    wide: int = field(UINT32, default=7)
    floats: list[float] = field(ArrayOf(FLOAT64), "1+", nullable="1+", ignorable=True)  # type: ignore[assignment]
    tagged: Point | None = field(Point, "1+", nullable="1+", default=None, tag=3, ignorable=True)
    numbers: list[list[int]] = field(ArrayOf(ArrayOf(INT32)))


@pytest.mark.parametrize("version", [0, 1])
def test_all_types_round_trip(version: int) -> None:
    value = Everything(
        point=Point(x=-(2**31), y=2**63 - 1),
        count=2**32 - 1,
        many=[0, -1, 63, -64, 64],
        numbers=[[1, 2], [], list(range(50))],
        **({"floats": [0.5], "tagged": Point(x=1, y=2)} if version else {}),
    )
    encoded = value.encode(version)
    assert Everything.decode(encoded, version) == value
    assert schema_of(Everything, version).encode(value) == encoded
    assert schema_of(Everything, version).encode(schema_of(Everything, version).decode(encoded)) == encoded
    for size in range(len(encoded)):
        with pytest.raises(ProtocolError):
            Everything.decode(encoded[:size], version)


@pytest.mark.parametrize(
    "wrong", [Everything(count=-1), Everything(count=2**32), Everything(point=Point(x=2**31)), Everything(wide=-1)]
)
def test_values_out_of_range(wrong: Everything) -> None:
    for version in (0, 1):
        with pytest.raises(ValueError, match="Everything"):
            wrong.encode(version)


@pytest.mark.parametrize("data", [b"\x80" * 5 + b"\0", b"\xff\xff\xff\xff\x7f"])
def test_a_varint_that_is_too_long(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="longer than 32 bits"):
        Everything.decode(data + bytes(20), 0)


def test_the_compiled_source_can_be_looked_at() -> None:
    source = source_of(MetadataRequest, 12)
    assert "def encode(o, out, parts):" in source
    assert "def decode(b, p):" in source


def test_messages_are_plain_objects() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request
    assert request != MetadataRequest()
    assert request != "something else"
    with pytest.raises(TypeError):
        hash(request)
