"""The declarations against Kafka's own schemas, field by field, in every version and in both directions.

Kafka 4.3.1 decides; 3.9.1 counts only for the old versions that 4.3.1 dropped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kclient.protocol import ApiKey, ApiMessage, request_class, response_class, schema_of
from kclient.protocol.schema import ArrayType, Field, StructType
from kclient.protocol.structs import Schema
from kclient.protocol.types import STRING, Type
from kclient.protocol.versions import Versions
from tests.conformance.kafka_schemas import KafkaSchema, Leaf, load_schemas
from tests.kafka_artifacts import KAFKA_3, KAFKA_4, kafka_clients_jar, missing_tools
from tests.protocol_values import TOP_LEVEL, versions_of

pytestmark = pytest.mark.maven

RENAMED = {
    # Kafka 4.1 widened the API and gave it a new name (KIP-1142).
    "ListConfigResourcesRequest": "ListClientMetricsResourcesRequest",
    "ListConfigResourcesResponse": "ListClientMetricsResourcesResponse",
}
"""Messages that had another name in 3.9.1."""

CONTROLLERS = "spoken among controllers, or by brokers to controllers; no client or broker listener serves it"
ZOOKEEPER = "of clusters with ZooKeeper, which ended with 3.9; never on a client's listener"
IN_LOGS = "a record that brokers write into their own logs; nobody sends it"
LEFT_OUT = {
    "AllocateProducerIds": CONTROLLERS,
    "AlterPartition": CONTROLLERS,
    "AssignReplicasToDirs": CONTROLLERS,
    "BeginQuorumEpoch": CONTROLLERS,
    "BrokerHeartbeat": CONTROLLERS,
    "BrokerRegistration": CONTROLLERS,
    "ControllerRegistration": CONTROLLERS,
    "EndQuorumEpoch": CONTROLLERS,
    "Envelope": CONTROLLERS,
    "FetchSnapshot": CONTROLLERS,
    "UpdateRaftVoter": CONTROLLERS,
    "Vote": CONTROLLERS,
    "ControlledShutdown": ZOOKEEPER,
    "LeaderAndIsr": ZOOKEEPER,
    "StopReplica": ZOOKEEPER,
    "UpdateMetadata": ZOOKEEPER,
    "ControlRecordTypeSchema": IN_LOGS,
    "DefaultPrincipalData": "travels inside Envelope requests only",
    "EndTxnMarker": IN_LOGS,
    "KRaftVersionRecord": IN_LOGS,
    "LeaderChangeMessage": IN_LOGS,
    "SnapshotFooterRecord": IN_LOGS,
    "SnapshotHeaderRecord": IN_LOGS,
    "VotersRecord": IN_LOGS,
}
"""What Kafka has and kclient does not declare, with the reason; APIs without Request or Response."""


@cache
def schemas(version: str) -> dict[str, KafkaSchema]:
    missing = missing_tools()
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} on PATH")
    return load_schemas(kafka_clients_jar(version))


def old_name(name: str) -> str:
    return RENAMED.get(name, name)


def sources(name: str) -> dict[int, KafkaSchema]:
    """The schema that counts, by version."""
    old = schemas(KAFKA_3).get(old_name(name))
    new = schemas(KAFKA_4).get(name)
    by_version: dict[int, KafkaSchema] = {}
    for schema in (old, new):  # the newer one overwrites
        if schema is not None and schema.versions:
            by_version |= dict.fromkeys(range(schema.versions.low, schema.versions.high + 1), schema)
    # versions above what 4.3.1 calls stable do not exist
    highest = -1 if new is None else new.versions.high
    return {version: schema for version, schema in sorted(by_version.items()) if version <= highest}


def expected_leaves(name: str, version: int) -> list[Leaf]:
    """Kafka's fields of a version. Default and `ignorable` belong to a field, not to a version: 4.3.1 has the word."""
    new = schemas(KAFKA_4)[name]
    newest: dict[str, Leaf] = {}
    for other in range(new.versions.low, new.versions.high + 1):
        newest |= {leaf.path: leaf for leaf in new.leaves(other)}
    return [
        replace(leaf, default=newest[leaf.path].default, ignorable=newest[leaf.path].ignorable)
        if leaf.path in newest
        else leaf
        for leaf in sources(name)[version].leaves(version)
    ]


# --- our declarations in the same form -----------------------------------------------------------------------


def leaves(schema: Schema, prefix: str = "") -> list[Leaf]:
    found = []
    for item in schema.fields:
        kind = item.type.element if isinstance(item.type, ArrayType) else item.type
        path = f"{prefix}{item.name}{'[]' if isinstance(item.type, ArrayType) else ''}"
        is_struct = isinstance(kind, StructType)
        found.append(
            Leaf(
                path=path,
                kind="struct" if is_struct else kind.name,
                nullable=schema.version in item.nullable,
                tag=item.tag if item.is_tagged(schema.version) else None,
                default=_default(item, kind),
                ignorable=item.ignorable,
            )
        )
        if isinstance(kind, StructType):
            nested = schema_of(kind.message, schema.version, flexible=schema.flexible)
            found += leaves(nested, f"{path}.")
    return found


def _default(item: Field, kind: Type[Any]) -> str:
    default = item.new_default()
    if default is None:
        return "null"
    if isinstance(item.type, ArrayType | StructType):
        return ""
    if isinstance(default, bytes):
        return "" if not any(default) else default.hex()
    if isinstance(default, bool):
        return str(default).lower()
    return default if kind is STRING else str(default)


# --- the comparison ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", TOP_LEVEL, ids=lambda cls: cls.__name__)
def test_declared_as_in_kafka(message: type[ApiMessage]) -> None:
    expected = sources(message.__name__)
    assert list(versions_of(message)) == list(expected), f"versions of {message.__name__}: kclient's, then Kafka's"
    for version, schema in expected.items():
        assert message.is_flexible(version) == (version in schema.flexible), version
        assert schema.api_key == message.API_KEY
        ours, theirs = leaves(schema_of(message, version)), expected_leaves(message.__name__, version)
        assert [item.path for item in ours] == [item.path for item in theirs], (
            f"fields of {message.__name__} v{version}: kclient's, then Kafka's"
        )
        for our, their in zip(ours, theirs, strict=True):
            assert our == their, f"{message.__name__} v{version}, {our.path}: kclient has {our}, Kafka {their}"


@pytest.mark.parametrize("message", TOP_LEVEL, ids=lambda cls: cls.__name__)
def test_no_field_outside_the_versions(message: type[ApiMessage]) -> None:
    """A field whose versions never occur would not be compared with anything."""
    valid = message.VERSIONS

    def check(fields: tuple[Field, ...], within: Versions) -> None:
        for item in fields:
            versions = item.versions & within
            assert versions, f"{message.__name__}.{item.name}"
            kind = item.type.element if isinstance(item.type, ArrayType) else item.type
            if isinstance(kind, StructType):
                check(kind.message.FIELDS, versions)

    check(message.FIELDS, valid)


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_nothing_of_kafka_is_missing(version: str) -> None:
    declared = {old_name(cls.__name__) for cls in TOP_LEVEL} | {cls.__name__ for cls in TOP_LEVEL}
    lacking = {
        name.removesuffix("Request").removesuffix("Response")
        for name, schema in schemas(version).items()
        if name not in declared
    }
    assert lacking <= LEFT_OUT.keys()


def test_what_is_left_out_exists_and_is_not_for_clients() -> None:
    everything = schemas(KAFKA_3) | schemas(KAFKA_4)
    for name in LEFT_OUT:
        found = [everything[key] for key in (name, f"{name}Request", f"{name}Response") if key in everything]
        assert found, f"{name} is not in Kafka (any more)"
        assert not any("broker" in schema.listeners for schema in found)


def test_every_broker_api_is_in_the_registry() -> None:
    for version in (KAFKA_3, KAFKA_4):
        for schema in schemas(version).values():
            if schema.type == "request" and "broker" in schema.listeners and schema.api_key is not None:
                key = ApiKey(schema.api_key)
                assert old_name(request_class(key).__name__) == schema.name or (
                    request_class(key).__name__ == schema.name
                )
                assert response_class(key).__name__ == f"{key.message_name}Response"
