"""Values that name their schemas in a registry, as columns."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from pyspark.errors import PythonException
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from kclient.errors import SchemaRegistryError, SerializationError
from kclient.spark import from_registry, register
from kclient.sync import Producer
from tests.protobuf_files import ORDER, PART, message_class, serialized
from tests.registry_server import RegistryServer, framed, serving_registry

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

AT = datetime(2024, 2, 29, 12, 30, 0, 500_000, tzinfo=UTC)
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}], "default": None},
        {"name": "note", "type": "string", "default": "none"},
    ],
}


@pytest.fixture
def server():
    with serving_registry() as server:
        yield server


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def frame_of(spark, *values: bytes | None):
    return spark.createDataFrame([(value,) for value in values], "value binary").repartition(2)


def test_values_of_a_topic_become_columns(spark, broker: str, topic: str, server: RegistryServer) -> None:
    old, new = server.register("orders-value", OLD), server.register("orders-value", NEW)
    register(spark)
    second = {"id": 2, "at": AT, "local": AT.replace(tzinfo=None), "note": "x"}
    with Producer(bootstrap_servers=broker) as producer:
        for value in (framed(old, avro(OLD, {"id": 1})), framed(new, avro(NEW, second)), None):
            producer.send(topic, value, partition=0)
    read = spark.read.format("kclient").option("kafka.bootstrap.servers", broker)
    frame = read.option("subscribe", topic).load()
    orders = frame.select("offset", from_registry("value", server.url, "orders-value").alias("order"))
    assert orders.schema["order"].dataType == StructType(
        [
            StructField("id", LongType()),
            StructField("at", TimestampType()),
            StructField("local", TimestampNTZType()),
            StructField("note", StringType()),
        ]
    )
    rows = orders.orderBy("offset").selectExpr("order.*", "unix_millis(order.at) AS ms").collect()
    assert [row.id for row in rows] == [1, 2, None]
    assert (rows[0].at, rows[0].note) == (None, "none")
    assert (rows[1].ms, rows[1].local) == (int(AT.timestamp() * 1000), AT.replace(tzinfo=None))


def test_versions_ids_and_the_latest(spark, server: RegistryServer) -> None:
    old, _ = server.register("t", OLD), server.register("t", NEW)
    frame = frame_of(spark, framed(old, avro(OLD, {"id": 1})))
    for arguments, names in (
        ({"subject": "t"}, ["id", "at", "local", "note"]),
        ({"subject": "t", "version": 1}, ["id"]),
        ({"schema_id": old}, ["id"]),
    ):
        opened = frame.select(from_registry(frame.value, {"url": server.url}, **arguments).alias("v"))
        assert opened.schema["v"].dataType.names == names
        assert opened.first().v.id == 1


def test_json_and_protobuf(spark, server: RegistryServer) -> None:
    shape = {"type": "object", "properties": {"n": {"type": "integer"}, "any": {}}}
    of_json = server.register("json", shape, "JSON")
    frame = frame_of(spark, framed(of_json, b'{"n": 5, "any": [1]}'))
    assert frame.select(from_registry("value", server.url, "json").alias("v")).first().v == (5, "[1]")
    server.register("part", "", "PROTOBUF", serialized=serialized(PART))
    proto = server.register("proto", "", "PROTOBUF", [("part.proto", "part", 1)], serialized=serialized(ORDER))
    order = message_class("shop.Order")(id=2**64 - 1, state=1)
    order.at.FromDatetime(AT.replace(tzinfo=None))
    order.counts["k"].name = "b"
    frame = frame_of(spark, framed(proto, b"\0" + order.SerializeToString()))
    opened = frame.select(from_registry("value", server.url, "proto").alias("v"))
    (row,) = opened.selectExpr("v.*", "unix_millis(v.at) AS ms").collect()
    assert (row.id, row.state, row.counts["k"].name) == (Decimal(2**64 - 1), "SENT", "b")
    assert row.ms == int(AT.timestamp() * 1000)


def test_types_that_are_odd(spark, server: RegistryServer) -> None:
    """Records without fields, lists of nulls, durations; and what the column is called."""
    empty = server.register("empty", {"type": "record", "name": "E", "fields": []})
    nulls = server.register("nulls", {"type": "array", "items": "null"})
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3", dependency=["google/protobuf/duration.proto"])
    kinds = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="M").field.add(
        name="took", number=1, label=1, type=kinds.TYPE_MESSAGE, type_name=".google.protobuf.Duration"
    )
    took = server.register("took", "", "PROTOBUF", serialized=serialized(file))
    for subject, value, found in (
        ("empty", framed(empty, b""), Row()),
        ("nulls", framed(nulls, b"\4\0"), [None, None]),
        ("took", framed(took, b"\0\x0a\x02\x08\x05"), Row(took=timedelta(seconds=5))),
    ):
        opened = frame_of(spark, value).select(from_registry("value", server.url, subject))
        assert opened.columns == ["from_registry(value)"]
        assert opened.first()[0] == found


def test_what_cannot_be_read(spark, server: RegistryServer) -> None:
    known = server.register("t", OLD)
    frame = frame_of(spark, framed(known, avro(OLD, {"id": 1})), b"text", framed(77, b"\2"), framed(77, b"\2"), None)
    lenient = frame.select(from_registry("value", server.url, "t", mode="PERMISSIVE").alias("v"))
    assert sorted([row.v and row.v.id for row in lenient.collect()], key=str) == [1, None, None, None, None]
    for value, why in ((b"text", "names no schema"), (framed(77, b""), "does not know the schema 77")):
        strict = frame_of(spark, value).select(from_registry("value", server.url, "t"))
        with pytest.raises(PythonException, match=why):
            strict.collect()


def test_values_that_a_column_has_no_room_for(spark, server: RegistryServer) -> None:
    at = server.register("at", {"type": "long", "logicalType": "timestamp-millis"})
    price = server.register("price", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0})
    text = server.register("text", {"properties": {"s": {"type": "string"}}}, "JSON")
    for subject, bad, good in (
        ("at", framed(at, avro("long", 2**62)), framed(at, avro("long", 1000))),
        ("price", framed(price, avro("bytes", b"\x01\xe2\x40")), framed(price, avro("bytes", b"\x7b"))),
        ("text", framed(text, b'{"s": "\\ud800"}'), framed(text, b'{"s": "x"}')),
    ):
        frame = frame_of(spark, bad, good)
        lenient = frame.select(from_registry("value", server.url, subject, mode="PERMISSIVE").alias("v"))
        assert sorted(row.v is None for row in lenient.collect()) == [False, True]
        with pytest.raises(PythonException, match="a value does not fit into its column"):
            frame.select(from_registry("value", server.url, subject)).collect()


def test_a_column_of_texts_is_refused_in_every_mode(spark, server: RegistryServer) -> None:
    server.register("t", OLD)
    frame = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(PythonException, match="opens binary columns, and this one is of the type string"):
        frame.select(from_registry("value", server.url, "t", mode="PERMISSIVE")).collect()


def test_a_registry_that_is_gone_fails_a_lenient_query_too(spark, server: RegistryServer) -> None:
    known = server.register("t", OLD)
    opened = frame_of(spark, framed(known + 1, b"")).select(from_registry("value", server.url, "t", mode="PERMISSIVE"))
    server.faults = [(503, b'{"message": "not now"}')] * 8
    with pytest.raises(PythonException, match="not now"):
        opened.collect()


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({}, ValueError, "either a subject or a schema_id"),
        ({"subject": "t", "schema_id": 1}, ValueError, "either a subject or a schema_id"),
        ({"schema_id": 1, "version": 1}, ValueError, "a version is one of a subject's"),
        ({"subject": "t", "mode": "DROPMALFORMED"}, ValueError, "expected mode to be FAILFAST or PERMISSIVE"),
        ({"subject": "nothing"}, SchemaRegistryError, "does not know the subject 'nothing'"),
        ({"subject": "t", "message": "M"}, SerializationError, "is for Protobuf"),
    ],
)
def test_it_is_refused_before_any_task(
    spark, server: RegistryServer, arguments: dict[str, Any], error: type[Exception], why: str
) -> None:
    server.register("t", OLD)
    with pytest.raises(error, match=why):
        from_registry("value", server.url, **arguments)
