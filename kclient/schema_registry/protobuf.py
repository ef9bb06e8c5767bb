"""Protobuf messages, by the descriptors that a registry tells in its form `serialized`: no compiler is needed.

Which Arrow type a message has follows Spark's own `from_protobuf`: enums are their names, unsigned numbers have room,
times and durations are such, and a field is null where its presence is told and it is absent.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kclient.arguments import shown
from kclient.errors import MissingExtraError, SerializationError
from kclient.schema_registry.framing import message_indexes, split

if TYPE_CHECKING:
    import pyarrow
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

    from kclient.schema_registry.client import SchemaRegistry
    from kclient.schema_registry.schema import RegisteredSchema

__all__ = ["SERIALIZED", "ProtobufReader"]

SERIALIZED: Final = "serialized"
"""The form in which a registry tells descriptors."""
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"
_GOOGLE_TYPES: Final = "google/type/"
_DECIMAL: Final = "confluent/type/decimal.proto"
_NANOS_OF_MICRO: Final = 1000

Take = Callable[[Any], Any]
"""Makes of a message, or of a field's value, what the column holds."""


class ProtobufReader:
    """Reads messages of one type.

    Args:
        registry: Has the schemas.
        schema: The file that the type is in.
        message: The type's name, with or without its package; the first of the file by default.

    Raises:
        MissingExtraError: protobuf is not installed.
        SerializationError: The schema is none, has no such message, or has something that no column can hold.
        SchemaRegistryError: It cannot be had in the form of descriptors.
    """

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema, message: str | None = None) -> None:
        try:
            from google.protobuf import message_factory
            from google.protobuf.message import DecodeError
        except ModuleNotFoundError as error:
            raise MissingExtraError("protobuf", "schema-registry", "Protobuf") from error
        self._decode_error = DecodeError
        self._registry = registry
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}
        """Full names by schema and place."""
        descriptor = _message(_file(registry, schema.schema_id), message)
        self._name: str = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)
        self.data_type: pyarrow.DataType
        self.data_type, self._take = _of_message(descriptor, ())

    def read(self, data: bytes) -> Any:
        """A message.

        Raises:
            SerializationError: It is none, or of another type.
            SchemaRegistryError: Its schema cannot be had.
        """
        schema_id, payload = split(data)
        indexes, payload = message_indexes(payload)
        name = self._names.get((schema_id, indexes))
        if name is None:
            found = _by_place(_file(self._registry, schema_id), indexes, schema_id)
            name = self._names[schema_id, indexes] = found.full_name
        if name != self._name:
            raise SerializationError(f"the value is a {name}, not a {self._name}")
        message = self._class()
        try:
            self._class.ParseFromString(message, bytes(payload))  # a field may have the method's name
        except self._decode_error as error:
            raise SerializationError(f"the value is no {self._name}: {error}") from error
        return self._take(message)


def _file(registry: SchemaRegistry, schema_id: int) -> Any:
    """The descriptor of a schema's file, in a pool with all that it imports."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    schema = registry.schema(schema_id, form=SERIALIZED)
    if schema.kind != "PROTOBUF":
        raise SerializationError(f"the schema {schema_id} is of the kind {schema.kind}, not PROTOBUF")
    pool = descriptor_pool.DescriptorPool()
    own = f"schema-{schema_id}.proto"
    absent: list[str] = []
    try:
        wanted = _descriptor(schema, own)
        files = {
            used.name: _descriptor(found, used.name) for used, found in registry.referenced(schema, form=SERIALIZED)
        }
        files = {**_known(), **files, own: wanted}
        added: set[str] = set()

        def add(name: str) -> None:
            if name in added:
                return
            added.add(name)
            found = files.get(name) or _of_a_package(name)
            if found is None:  # one that is weak, or not used
                absent.append(name)
                found = descriptor_pb2.FileDescriptorProto(name=name)
            for dependency in found.dependency:
                add(dependency)
            pool.Add(found)

        add(own)
        return pool.FindFileByName(own)
    except binascii.Error as error:
        raise _no_descriptor(schema_id, error) from error
    except (TypeError, ValueError, KeyError) as error:
        raise SerializationError(f"the schema {schema_id} is not a Protobuf file: {error}{_hint(absent)}") from error
    except DecodeError as error:
        raise _no_descriptor(schema_id, error) from error


def _no_descriptor(schema_id: int, error: Exception) -> SerializationError:
    return SerializationError(
        f"the registry does not tell the schema {schema_id} as a descriptor (format={SERIALIZED}): {error}"
    )


def _hint(absent: list[str]) -> str:
    if not absent:
        return ""
    text = f"; it imports {', '.join(absent)}, which the registry has no reference to"
    if any(each.startswith(_GOOGLE_TYPES) for each in absent):
        text += f". {_GOOGLE_TYPES}* comes with the package googleapis-common-protos"
    return text


def _of_a_package(name: str) -> Any:
    """A file that Confluent's serializers expect everybody to have, and register no reference to."""
    from google.protobuf import descriptor_pb2

    if name == _DECIMAL:
        found = descriptor_pb2.FileDescriptorProto(name=name, package="confluent.type", syntax="proto3")
        message, kinds = found.message_type.add(name="Decimal"), descriptor_pb2.FieldDescriptorProto
        for number, (field, kind) in enumerate(
            (("value", kinds.TYPE_BYTES), ("precision", kinds.TYPE_UINT32), ("scale", kinds.TYPE_INT32)), 1
        ):
            message.field.add(name=field, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
        return found
    if not name.startswith(_GOOGLE_TYPES) or not name.endswith(".proto"):
        return None
    module = name.removesuffix(".proto").removeprefix(_GOOGLE_TYPES)
    if not module.isidentifier():
        return None
    try:
        file = importlib.import_module(f"google.type.{module}_pb2").DESCRIPTOR
    except ImportError:
        return None
    found = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(found)
    return found


def _descriptor(schema: RegisteredSchema, name: str) -> Any:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorProto()
    found.ParseFromString(base64.b64decode(schema.text, validate=True))
    found.name = name
    return found


def _known() -> dict[str, Any]:
    """The files of Protobuf itself."""
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    found = {}
    for module in (
        any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2,
        timestamp_pb2, type_pb2, wrappers_pb2,
    ):  # fmt: skip
        proto = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        found[proto.name] = proto
    return found


def _message(file: Any, name: str | None) -> Descriptor:
    messages: dict[str, Descriptor] = {}
    for each in file.message_types_by_name.values():
        _gather(each, messages)
    if not messages:
        raise SerializationError("the Protobuf schema has no message")
    if name is None:
        return next(iter(messages.values()))
    package = f"{file.package}." if file.package else ""
    for wanted in (name, package + name):
        if wanted in messages:
            return messages[wanted]
    raise SerializationError(f"the Protobuf schema has no message {shown(name)}; it has {', '.join(messages)}")


def _gather(descriptor: Descriptor, found: dict[str, Descriptor]) -> None:
    found[descriptor.full_name] = descriptor
    for each in descriptor.nested_types:
        _gather(each, found)


def _by_place(file: Any, indexes: tuple[int, ...], schema_id: int) -> Descriptor:
    inner: Any = list(file.message_types_by_name.values())
    descriptor: Any = None
    for index in indexes:
        if index >= len(inner):
            raise SerializationError(f"the Protobuf schema {schema_id} has no message at {list(indexes)}")
        descriptor = inner[index]
        inner = descriptor.nested_types
    return descriptor


def _of_message(descriptor: Descriptor, above: tuple[str, ...]) -> tuple[pyarrow.DataType, Take]:
    import pyarrow
    from google.protobuf import message_factory

    if descriptor.full_name == _TIMESTAMP:
        return pyarrow.timestamp(
            "us", tz="UTC"
        ), lambda value: value.seconds * 1_000_000 + value.nanos // _NANOS_OF_MICRO
    if descriptor.full_name == _DURATION:  # whose nanoseconds have the sign of its seconds
        return pyarrow.duration("us"), lambda value: value.seconds * 1_000_000 + int(value.nanos / _NANOS_OF_MICRO)
    if descriptor.full_name in above:
        raise SerializationError(f"the message {descriptor.full_name} holds itself: no column can be that deep")
    fields, takes = [], []
    for field in descriptor.fields:
        data_type, take = _of_field(field, (*above, descriptor.full_name))
        fields.append(pyarrow.field(field.name, data_type))
        takes.append((field.name, field.has_presence, take))
    has_field = message_factory.GetMessageClass(descriptor).HasField  # a field of the message may be called so

    def take_all(message: Any) -> Any:
        return {
            name: take(getattr(message, name)) if not told or has_field(message, name) else None
            for name, told, take in takes
        }

    return pyarrow.struct(fields), take_all


def _of_field(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pyarrow.DataType, Take]:
    import pyarrow

    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, _ = _of_value(entry.fields_by_name["key"], above)
        value, take = _of_value(entry.fields_by_name["value"], above)
        return pyarrow.map_(key, value), lambda found: [(name, take(each)) for name, each in found.items()]
    data_type, take = _of_value(field, above)
    if field.is_repeated:
        return pyarrow.list_(data_type), lambda found: [take(each) for each in found]
    return data_type, take


def _of_value(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pyarrow.DataType, Take]:
    import pyarrow

    if field.message_type is not None:
        return _of_message(field.message_type, above)
    if field.enum_type is not None:
        # Of several names for a number the first, as Java has it.
        names = {value.number: value.name for value in reversed(list(field.enum_type.values))}
        return pyarrow.string(), lambda number: names.get(number, str(number))
    kinds = {
        field.CPPTYPE_INT32: pyarrow.int32(),
        field.CPPTYPE_INT64: pyarrow.int64(),
        field.CPPTYPE_UINT32: pyarrow.int64(),
        field.CPPTYPE_UINT64: pyarrow.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pyarrow.float64(),
        field.CPPTYPE_FLOAT: pyarrow.float32(),
        field.CPPTYPE_BOOL: pyarrow.bool_(),
        field.CPPTYPE_STRING: pyarrow.binary() if field.type == field.TYPE_BYTES else pyarrow.string(),
    }
    return kinds[field.cpp_type], _same


def _same(value: Any) -> Any:
    return value
