"""What cannot be encoded is one error, `EncodeError`, and names message, version and field; so do generic structs."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from kclient.errors import UnsupportedVersionError
from kclient.protocol import ApiKey, ApiMessage, EncodeError, Schema, Struct, framing, request_schema, schema_of
from kclient.protocol.embedded import encode_embedded
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kclient.protocol.schema import ArrayType, Field, StructType
from kclient.protocol.types import BOOL, FixedType
from tests.fuzz.fuzz_messages import filled
from tests.protocol_values import TOP_LEVEL

ALL = pytest.mark.parametrize("message", TOP_LEVEL, ids=lambda cls: cls.__name__)
TOPICS = request_schema(ApiKey.CREATE_TOPICS, 4)


class Odd:
    """A value of nobody's type that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __len__(self) -> int:
        raise RuntimeError("no length")


def records(value: Any) -> ProduceRequest:
    return ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=value)])])


# --- messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "version", "path", "text"),
    [
        (MetadataRequest(topics=["abc"]), 4, "topics[0]", "expected a MetadataRequestTopic"),  # type: ignore[list-item]
        (MetadataRequest(topics=[None]), 4, "topics[0]", "expected a MetadataRequestTopic"),  # type: ignore[list-item]
        (MetadataRequest(topics={1: 2}), 4, "topics", "expected a list, got {1: 2}"),  # type: ignore[arg-type]
        (ProduceRequest(acks=99999), 9, "acks", "99999 does not fit into int16 (-32768 to 32767)"),
        (ProduceRequest(acks="all"), 9, "acks", "expected an int, got 'all'"),  # type: ignore[arg-type]
        (ProduceRequest(acks=10**5000), 9, "acks", "an object of int does not fit into int16 (-32768 to 32767)"),
        (ProduceRequest(transactional_id=5), 9, "transactional_id", "expected a str, got 5"),  # type: ignore[arg-type]
        (
            HeartbeatRequest(group_id="a\ud800"),
            4,
            "group_id",
            "half of a surrogate pair at character 1: no UTF-8 has it",
        ),
        (HeartbeatRequest(group_id=None), 4, "group_id", "expected a str, got None"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=Odd()), 4, "group_id", "expected a str, got an object of Odd"),  # type: ignore[arg-type]
        (
            HeartbeatRequest(group_id="x" * 40_000),
            2,
            "group_id",
            "a string of 40000 bytes is longer than the allowed 32767",
        ),
        (DeleteTopicsRequest(topic_names="abc"), 4, "topic_names", "expected a list, got 'abc'"),  # type: ignore[arg-type]
        (DeleteTopicsRequest(topic_names=[b"abc"]), 4, "topic_names[0]", "expected a str, got b'abc'"),  # type: ignore[list-item]
        (MetadataRequest(topics=Odd()), 12, "topics", "expected a list, got an object of Odd"),  # type: ignore[arg-type]
        (
            MetadataRequest(topics=[MetadataRequestTopic(topic_id="0123456789abcdef")]),  # type: ignore[arg-type]
            12,
            "topics[0].topic_id",
            "a UUID is 16 bytes, not '0123456789abcdef'",
        ),
        (
            MetadataRequest(topics=[MetadataRequestTopic(topic_id=memoryview(bytes(16)))]),  # type: ignore[arg-type]
            12,
            "topics[0].topic_id",
            "a UUID is 16 bytes, not <memory",
        ),
        (records("abc"), 9, "topic_data[0].partition_data[0].records", "expected bytes, got 'abc'"),
        (records([1, 2]), 3, "topic_data[0].partition_data[0].records", "expected bytes, got [1, 2]"),
        (
            ConsumerProtocolSubscription(user_data=[1, 2]),  # type: ignore[arg-type]
            3,
            "user_data",
            "expected bytes, got [1, 2]",
        ),
    ],
)
def test_messages(message: ApiMessage, version: int, path: str, text: str) -> None:
    kind = f"{type(message).__name__.removesuffix('Request')} v{version}"
    title = f"{kind} request" if type(message).__name__.endswith("Request") else kind
    for encode in (message.encode, message.encode_parts, lambda v: schema_of(type(message), v).encode(message)):
        with pytest.raises(EncodeError) as caught:
            encode(version)
        assert str(caught.value).startswith(f"{title}: {path}: {text}")
        assert (caught.value.path, caught.value.version) == (path, version)
        assert len(str(caught.value)) < 400


def lazy_topics(*names: Any) -> MetadataResponse:
    def topic(name: Any) -> MetadataResponseTopic:
        partitions = (MetadataResponsePartition(leader_id=leader) for leader in (1, name))
        return MetadataResponseTopic(name="t", partitions=lazily(2, partitions))

    return MetadataResponse(topics=lazily(len(names), map(topic, names)))


def test_arrays_whose_elements_are_made_while_they_are_written() -> None:
    assert lazy_topics(1, 2).encode(1) == MetadataResponse.decode(lazy_topics(1, 2).encode(1), 1).encode(1)

    def in_steps(message: MetadataResponse, version: int) -> None:
        list(message.encode_steps(bytearray(), [], version))

    for encode in (MetadataResponse.encode, MetadataResponse.encode_parts, in_steps):
        with pytest.raises(EncodeError) as caught:
            encode(lazy_topics(1, 2, "three", 4), 1)
        path = "topics[2].partitions[1].leader_id"
        assert str(caught.value) == f"Metadata v1 response: {path}: expected an int, got 'three'"
        assert caught.value.path == path


def test_an_array_whose_elements_cannot_be_made() -> None:
    def failing() -> Iterator[MetadataResponseTopic]:
        yield MetadataResponseTopic(name="t")
        raise ValueError("nothing is known of the next")

    with pytest.raises(EncodeError, match="Metadata v1 response: ValueError: nothing is known of the next"):
        MetadataResponse(topics=lazily(2, failing())).encode(1)


@pytest.mark.parametrize("given", [{"name": "a"}, request_schema(3, 4).decode(bytes(5)), "abc"], ids=type)
def test_messages_take_no_mappings_inside(given: Any) -> None:
    """What is told of is what the compiled encoder takes, not what a generic struct would."""
    with pytest.raises(EncodeError) as caught:
        MetadataRequest(topics=[given]).encode(4)
    assert str(caught.value) == f"Metadata v4 request: topics[0]: expected a MetadataRequestTopic, got {given!r}"


@pytest.mark.parametrize("given", [None, 3, "abc", [1], memoryview(array("i", [0, 1]))])
def test_messages_are_read_from_bytes(given: Any) -> None:
    for decode in (lambda: MetadataRequest.decode(given, 4), lambda: request_schema(3, 4).decode(given)):
        with pytest.raises(TypeError, match="a message is read from"):
            decode()
    with pytest.raises(TypeError, match=r"view\.cast"):
        request_schema(3, 4).decode(memoryview(bytes(10))[::2])


def test_it_is_a_value_error_that_can_be_pickled() -> None:
    error = EncodeError("text", path="a.b", version=3)
    copied = pickle.loads(pickle.dumps(error))
    assert isinstance(copied, ValueError)
    assert (str(copied), copied.path, copied.version) == ("text", "a.b", 3)


@ALL
def test_a_wrong_value_in_each_field(message: type[ApiMessage]) -> None:
    """Whatever the field: `EncodeError` with its name, from the compiled encoder and from the schema."""
    version = message.VERSIONS.high
    tried = 0
    for item in schema_of(message, version).fields:
        for wrong in (Odd(), -(2**70), "\udcff"):
            if isinstance(item.type, FixedType) and item.type is BOOL:
                continue  # the compiled encoder takes anything for a flag, as Python does
            value = filled(message, version)
            setattr(value, item.name, wrong)
            for encode in (value.encode, lambda v, value=value: schema_of(message, v).encode(value)):
                with pytest.raises(EncodeError, match=rf": {item.name}(\[0\])?: ") as caught:
                    encode(version)
                assert caught.value.path.startswith(item.name)
                tried += 1
    assert tried or not any(item.type is not BOOL for item in schema_of(message, version).fields)


@pytest.mark.parametrize("version", ["4", 4.5, None, [], -1, 99])
def test_a_version_that_is_none(version: Any) -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        MetadataRequest().encode(version)
    text = f"kclient knows MetadataRequest in versions 0-13, not in version {version!r} [UNSUPPORTED_VERSION]"
    assert str(caught.value) == text
    with pytest.raises(UnsupportedVersionError, match="in version"):
        MetadataRequest.decode(b"", version)
    with pytest.raises(UnsupportedVersionError, match="in version"):
        request_schema(ApiKey.METADATA, version)
    with pytest.raises(UnsupportedVersionError, match="in version"):
        framing.encode_request(MetadataRequest(), version, 1, None)


@pytest.mark.parametrize(
    ("message", "version", "text"),
    [
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 4, "topics[0].name: null is possible in 10+ only"),
        (MetadataRequest(topics=None), 0, "topics: null is possible in 1+ only"),
        (
            JoinGroupRequest(group_instance_id="x"),
            4,
            "group_instance_id: the version has no field group_instance_id (it has value 'x'), only 5+",
        ),
    ],
)
def test_what_a_version_cannot_carry(message: ApiMessage, version: int, text: str) -> None:
    title = f"{type(message).__name__.removesuffix('Request')} v{version} request"
    for encode in (message.encode, lambda v: schema_of(type(message), v).encode(message)):
        with pytest.raises(UnsupportedVersionError) as caught:
            encode(version)
        assert str(caught.value) == f"{title}: {text} [UNSUPPORTED_VERSION]"


def test_a_field_that_was_deleted() -> None:
    request = MetadataRequest()
    del request.topics
    with pytest.raises(EncodeError, match="Metadata v12 request: the field topics was deleted"):
        request.encode(12)


def test_subclasses_of_bytes_are_bytes() -> None:
    class Mine(bytes):
        pass

    assert records(Mine(b"abc")).encode(9) == records(b"abc").encode(9) == records(memoryview(b"abc")).encode(9)
    assert ConsumerProtocolAssignment(user_data=Mine(b"abc")).encode(3).endswith(b"abc")


def test_records_are_not_copied_to_find_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is walked once more into a buffer that forgets what it gets."""
    large = bytes(1 << 20)
    request = records(large)
    request.topic_data[0].partition_data.append(PartitionProduceData(index=2**40))
    seen: list[int] = []
    write = Schema.write

    def recorded(self: Schema, out: bytearray, value: Any, **options: bool) -> None:
        try:
            write(self, out, value, **options)
        finally:
            seen.append(len(out))

    monkeypatch.setattr(Schema, "write", recorded)
    with pytest.raises(EncodeError, match=r"partition_data\[1\]\.index: 1099511627776"):
        request.encode(9)
    assert seen == [0]
    with pytest.raises(EncodeError, match=r"partition_data\[1\]\.index"):
        schema_of(ProduceRequest, 9).encode(request)
    assert seen[1] > len(large)  # which a schema does that was asked for bytes


# --- frames --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correlation_id", "client_id", "text"),
    [
        (2**40, "me", "header: correlation_id: 1099511627776 does not fit into int32 (-2147483648 to 2147483647)"),
        ("7", "me", "header: correlation_id: expected an int, got '7'"),
        (7, 5, "header: client_id: expected a str, got 5"),
        (7, b"me", "header: client_id: expected a str, got b'me'"),
        (7, "\ud800", "header: client_id: half of a surrogate pair at character 0: no UTF-8 has it"),
        (7, "x" * 32768, "header: client_id: a string of 32768 bytes is longer than the allowed 32767"),
    ],
)
def test_headers_of_requests(correlation_id: Any, client_id: Any, text: str) -> None:
    with pytest.raises(EncodeError) as caught:
        framing.encode_request(MetadataRequest(), 4, correlation_id, client_id)
    assert str(caught.value) == f"Metadata v4 request: {text}"
    assert caught.value.path == text.split(": ")[1]


@pytest.mark.parametrize("correlation_id", [2**31, -(2**31) - 1, None, "7"])
def test_headers_of_responses(correlation_id: Any) -> None:
    with pytest.raises(EncodeError, match="Metadata v4 response: header: correlation_id: "):
        framing.encode_response(MetadataResponse(), 4, correlation_id)


def test_what_is_no_message() -> None:
    with pytest.raises(EncodeError, match="expected a message, got None"):
        framing.encode_request(None, 4, 1, None)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="ConsumerProtocolAssignment is not a request"):
        framing.encode_request(ConsumerProtocolAssignment(), 1, 1, None)
    with pytest.raises(EncodeError, match="MetadataResponse is not a request"):
        framing.encode_request(MetadataResponse(), 1, 1, None)


def test_a_frame_that_is_too_large() -> None:
    """Many views of the same records: they are not copied."""
    data = memoryview(bytes(1 << 24))
    partitions = [PartitionProduceData(index=index, records=data) for index in range(128)]
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=partitions)])
    with pytest.raises(EncodeError, match=r"Produce v9 request: a frame of 214\d{7} bytes is larger than 2147483647"):
        framing.encode_request(request, 9, 1, None)


@pytest.mark.parametrize("version", ["1", 99, 2**20])
def test_embedded_versions(version: Any) -> None:
    with pytest.raises(UnsupportedVersionError, match="in version"):
        encode_embedded(ConsumerProtocolAssignment(), version)


# --- generic structs and mappings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, CreateTopicsRequest()),
        ({"topics": [{"name": "t"}]}, CreateTopicsRequest(topics=[CreatableTopic(name="t")])),
        ({"topics": [{"name": "t"}, {}], "timeout_ms": 5}, None),
        ({"topics": (CreatableTopic(name="t"), {"name": "u", "num_partitions": -1})}, None),
        ({"topics": [Struct(schema_of(CreatableTopic, 4, flexible=False), {"name": "t"})]}, None),
    ],
)
def test_defaults_at_every_depth(value: dict[str, Any], expected: CreateTopicsRequest | None) -> None:
    if expected is None:
        expected = CreateTopicsRequest(
            topics=[
                topic
                if isinstance(topic, CreatableTopic)
                else CreatableTopic(name=topic.get("name", ""), num_partitions=topic.get("num_partitions", 0))
                for topic in value["topics"]
            ],
            timeout_ms=value.get("timeout_ms", 60000),
        )
    for given in (value, Struct(TOPICS, value)):
        assert TOPICS.encode(given) == expected.encode(4)


@ALL
def test_nothing_given_is_the_message_of_defaults(message: type[ApiMessage]) -> None:
    for version in range(message.VERSIONS.low, message.VERSIONS.high + 1):
        schema = schema_of(message, version)
        assert schema.encode({}) == schema.encode(Struct(schema)) == message().encode(version)
        sparse = {item.name: _sparse(item) for item in schema.fields if version not in item.nullable}
        full = message(**{name: _made(item, sparse[name]) for item in schema.fields if (name := item.name) in sparse})
        assert schema.encode(sparse) == schema.encode(Struct(schema, sparse)) == full.encode(version)


def _sparse(item: Field) -> Any:
    """An empty mapping for a struct, and for the one element of an array of them."""
    if isinstance(item.type, StructType):
        return {}
    if isinstance(item.type, ArrayType) and isinstance(item.type.element, StructType):
        return [{}]
    return item.new_default()


def _made(item: Field, value: Any) -> Any:
    kind = item.type.element if isinstance(item.type, ArrayType) else item.type
    if isinstance(kind, StructType):
        return [kind.message()] if isinstance(value, list) else kind.message()
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"topcs": []}, "no field 'topcs'; did you mean 'topics'?"),
        ({"x": []}, "no field 'x'; the fields are topics, timeout_ms, validate_only"),
        ({1: []}, "no field 1; the fields are topics, timeout_ms, validate_only"),
        ({"topics": [{"nam": "t"}]}, "topics[0]: no field 'nam'; did you mean 'name'?"),
        (
            {"topics": [{}, {"assignments": [{"broker_id": [1]}]}]},
            "topics[1].assignments[0]: no field 'broker_id'; did",
        ),
        ({"topics": None}, "topics: expected a list, got None"),
        ({"topics": {"name": "t"}}, "topics: expected a list, got {'name': 't'}"),
        ({"topics": ["t"]}, "topics[0]: expected a CreatableTopic or a mapping, got 't'"),
        ({"topics": [MetadataRequest()]}, "topics[0]: expected a CreatableTopic or a mapping, got MetadataRequest()"),
        (
            {"topics": [{"num_partitions": 2**31}]},
            "topics[0].num_partitions: 2147483648 does not fit into int32 (-2147483648 to 2147483647)",
        ),
        ({"topics": [{"num_partitions": None}]}, "topics[0].num_partitions: expected an int, got None"),
        ({"topics": [{"num_partitions": 1.5}]}, "topics[0].num_partitions: expected an int, got 1.5"),
        ({"validate_only": "yes"}, "validate_only: expected a bool, got 'yes'"),
        (
            {"topics": [{"assignments": [{"broker_ids": [1, 2**40]}]}]},
            "topics[0].assignments[0].broker_ids[1]: 1099511627776 does not fit",
        ),
        (3, "expected a CreateTopicsRequest or a mapping, got 3"),
        (None, "expected a CreateTopicsRequest or a mapping, got None"),
    ],
)
def test_mappings(value: Any, text: str) -> None:
    with pytest.raises(EncodeError) as caught:
        TOPICS.encode(value)
    assert str(caught.value).startswith(f"CreateTopics v4 request: {text}")
    assert caught.value.version == 4


def test_unknown_names_of_a_struct() -> None:
    with pytest.raises(EncodeError, match="CreateTopics v4 request: no field 'topcs'; did you mean 'topics'"):
        Struct(TOPICS, {"topcs": []})


def test_fields_of_other_versions() -> None:
    """As in messages: dropped if ignorable or the default, else refused."""
    schema = schema_of(FetchRequest, 11)
    assert schema.encode({"cluster_id": "c"}) == schema.encode({}) == FetchRequest(cluster_id="c").encode(11)
    assert schema.encode({"replica_state": {"replica_id": -1}}) == FetchRequest().encode(11)
    joining = schema_of(JoinGroupRequest, 4)
    assert joining.encode({"group_instance_id": None}) == joining.encode({})
    for make in (joining.encode, lambda value: Struct(joining, value)):
        with pytest.raises(
            UnsupportedVersionError, match="JoinGroup v4 request: group_instance_id: the version has no"
        ):
            make({"group_instance_id": "x"})
    with pytest.raises(UnsupportedVersionError, match=r"ListOffsets v1 request: isolation_level"):
        schema_of(ListOffsetsRequest, 1).encode({"isolation_level": 1})


def test_a_tagged_struct_that_names_its_defaults_is_not_written() -> None:
    schema = schema_of(FetchRequest, 15)
    assert schema.encode({"replica_state": {}}) == FetchRequest().encode(15)
    assert schema.encode({"replica_state": {"replica_id": -1, "replica_epoch": -1}}) == FetchRequest().encode(15)
    request = FetchRequest()
    request.replica_state.replica_id = 4
    assert schema.encode({"replica_state": {"replica_id": 4}}) == request.encode(15)
    with pytest.raises(EncodeError, match=r"Fetch v15 request: replica_state: no field 'x'"):
        schema.encode({"replica_state": {"x": 4}})
    assert ProduceResponse.decode(schema_of(ProduceResponse, 10).encode({"node_endpoints": [{}]}), 10).node_endpoints
