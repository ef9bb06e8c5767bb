"""Protobuf files without a compiler: descriptors, as a registry tells them."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_F = descriptor_pb2.FieldDescriptorProto
PART = descriptor_pb2.FileDescriptorProto(name="part.proto", package="shop", syntax="proto3")
ORDER = descriptor_pb2.FileDescriptorProto(
    name="order.proto",
    package="shop",
    syntax="proto3",
    dependency=["google/protobuf/timestamp.proto", "part.proto"],
)


def _field(message: Any, name: str, number: int, kind: int, label: int = 1, of: str = "") -> Any:
    return message.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)


def _fill() -> None:
    part = PART.message_type.add(name="Part")
    _field(part, "name", 1, _F.TYPE_STRING)
    _field(part, "price", 2, _F.TYPE_DOUBLE)
    order = ORDER.message_type.add(name="Order")
    _field(order, "id", 1, _F.TYPE_UINT64)
    _field(order, "at", 2, _F.TYPE_MESSAGE, of=".google.protobuf.Timestamp")
    _field(order, "parts", 3, _F.TYPE_MESSAGE, _F.LABEL_REPEATED, ".shop.Part")
    _field(order, "state", 4, _F.TYPE_ENUM, of=".shop.State")
    note = _field(order, "note", 5, _F.TYPE_STRING)
    order.oneof_decl.add(name="_note")
    note.proto3_optional, note.oneof_index = True, 0
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, _F.TYPE_STRING)
    _field(entry, "value", 2, _F.TYPE_MESSAGE, of=".shop.Part")
    _field(order, "counts", 6, _F.TYPE_MESSAGE, _F.LABEL_REPEATED, ".shop.Order.CountsEntry")
    _field(order, "raw", 7, _F.TYPE_BYTES)
    other = ORDER.message_type.add(name="Other")
    inner = other.nested_type.add(name="Inner")
    _field(inner, "number", 1, _F.TYPE_UINT32)
    loop = ORDER.message_type.add(name="Loop")
    _field(loop, "again", 1, _F.TYPE_MESSAGE, of=".shop.Loop")
    state = ORDER.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "SENT")):
        state.value.add(name=name, number=number)


_fill()


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    for each in (times, PART, ORDER):
        pool.Add(each)
    return pool


_POOL = _pool()


def message_class(name: str) -> Any:
    """The class of a message, as `shop.Order`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


def serialized(file: Any) -> str:
    """A file as a registry tells it."""
    return base64.b64encode(file.SerializeToString()).decode()
