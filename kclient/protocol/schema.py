"""The schema language: what a message's declaration is made of, and generic structs that need nothing else.

A message is a class whose fields say type, versions, nullability, default and tag, in the vocabulary of the
protocol guide:

```python
class MetadataRequestTopic(Message):
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, "0+", nullable="10+")

class MetadataRequest(ApiMessage, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = field(ArrayOf(MetadataRequestTopic), nullable="1+")
```

`schema_of(MetadataRequest, 12)` is the `Schema` of one version: an ordered list of the fields that it has. It reads
and writes generic `Struct`s (or anything with the same names) field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol.primitives import length_error, read_uvarint, write_tags
from kclient.protocol.types import BYTES, RECORDS, LengthType, Type
from kclient.protocol.versions import Versions
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.protocol.message import Message

T = TypeVar("T")


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


# --- composite types -----------------------------------------------------------------------------------------


class ArrayType(LengthType[list[Any]]):
    """A list of values of one type. Written `ArrayOf(INT32)` or `ArrayOf(SomeMessage)` in declarations."""

    def __init__(self, element: Type[Any]) -> None:
        super().__init__(f"[]{element.name}", [], wide=True)
        self.element = element


class StructType(Type[Any]):
    """A message inside another one. Declarations name the class itself."""

    def __init__(self, message: type[Message]) -> None:
        super().__init__(message.__name__, None)
        self.message = message


def ArrayOf(element: type[T] | Type[T]) -> Type[list[T]]:  # noqa: N802  (a type, in Kafka's vocabulary)
    """The type of an array whose elements have the given type."""
    return ArrayType(as_type(element))


def as_type(kind: type[Any] | Type[Any]) -> Type[Any]:
    """The type itself, or the struct type of a message class."""
    return kind if isinstance(kind, Type) else StructType(kind)


# --- fields --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, in all its versions.

    Attributes:
        name: Its name: Kafka's in snake_case.
        type: Its type.
        versions: The versions that have it.
        nullable: The versions in which it may be null.
        default: Its value where a version does not have it, and if none is given.
        ignorable: Whether a version that lacks the field drops its value silently. For other fields encoding
            raises `UnsupportedVersionError` if they have another value than the default.
        tag: Number of the tagged field, or None.
        tagged: The versions in which it is a tagged field.
        flexible: The versions in which it may be compact, where that differs from the message.
        sensitive: Whether the value is a secret, which neither a `repr` nor an error shows.
    """

    name: str
    type: Type[Any]
    versions: Versions
    nullable: Versions
    default: Any
    ignorable: bool
    tag: int | None
    tagged: Versions
    flexible: Versions
    sensitive: bool

    def new_default(self) -> Any:
        """The default, as a value of its own if it can be changed."""
        if self.default is not UNSET:
            return self.default
        if isinstance(self.type, StructType):
            return self.type.message()
        return [] if isinstance(self.type, ArrayType) else self.type.default

    def is_tagged(self, version: int) -> bool:
        """Whether it is a tagged field in that version."""
        return self.tag is not None and version in self.tagged

    def shown(self, value: Any) -> str:
        """A value of it, for a `repr` or an error: no secrets, however deep they lie, and no megabytes."""
        if self.sensitive:
            return _HIDDEN if value else repr(value)
        return _shown(self.type, value)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A field before its class gives it a name: what `field()` returns."""

    options: dict[str, Any]

    def named(self, name: str) -> Field:
        """The field under its name."""
        return Field(name=name, **self.options)


@overload
def field(
    kind: type[T] | Type[T],
    versions: str = "0+",
    *,
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str = "0+",
    sensitive: bool = False,
) -> T: ...
@overload
def field(
    kind: type[T] | Type[T],
    versions: str = "0+",
    *,
    nullable: str,
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str = "0+",
    sensitive: bool = False,
) -> T | None: ...
def field(
    kind: type[Any] | Type[Any],
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
    flexible: str = "0+",
    sensitive: bool = False,
) -> Any:
    """Declare a field of a message; see `Field` for what the options mean.

    Args:
        kind: The type, or the message class of a nested struct.
        versions: The versions that have the field, such as "0+" or "3-5".
        nullable: The versions in which it may be null.
        default: Its default; else 0, "", False, an empty array or a struct of defaults.
        ignorable: Whether versions without the field drop it silently.
        tag: Its number, if it is a tagged field.
        tagged: The versions in which it is one; else all in `versions`.
        flexible: The versions in which it may be compact.
        sensitive: Whether the value is a secret.
    """
    options = {
        "type": as_type(kind),
        "versions": Versions.parse(versions),
        "nullable": Versions.parse(nullable),
        "default": default,
        "ignorable": ignorable,
        "tag": tag,
        "tagged": Versions.parse(tagged or (versions if tag is not None else "none")),
        "flexible": Versions.parse(flexible),
        "sensitive": sensitive,
    }
    return cast("Any", Unnamed(options))


# --- what may be shown ----------------------------------------------------------------------------------------


_HIDDEN: Final = "<hidden>"
_MANY_BYTES: Final = 64


def has_secrets(fields: tuple[Field, ...]) -> bool:
    """Whether a field is sensitive, or one of the structs inside."""
    return any(item.sensitive or _holds_secrets(item.type) for item in fields)


def _holds_secrets(kind: Type[Any]) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_secrets(kind.element)
    return isinstance(kind, StructType) and has_secrets(kind.message.FIELDS)


def _shown(kind: Type[Any], value: Any) -> str:
    if not _holds_secrets(kind):
        if isinstance(value, Buffer):
            return f"<{len(value)} bytes>" if len(value) > _MANY_BYTES else repr(bytes(value))
        return repr(value)
    if isinstance(kind, ArrayType) and isinstance(value, list | tuple):
        return f"[{', '.join(_shown(kind.element, element) for element in value)}]"
    if isinstance(kind, StructType):
        if isinstance(value, kind.message | Struct):
            return repr(value)
        if isinstance(value, Mapping):  # structs may be given as plain mappings
            known = {item.name: item for item in kind.message.FIELDS}
            return f"{{{', '.join(f'{key!r}: {known[key].shown(value[key])}' for key in value if key in known)}}}"
    return repr(value) if value is None else _HIDDEN  # of a wrong type: anything may be in it


# --- one version, interpreted --------------------------------------------------------------------------------


class Struct(Mapping[str, Any]):
    """A value of a `Schema`: a mapping of the version's field names to values, nested ones being structs too.

    Args:
        schema: The schema that it is a value of.
        values: Values by field name; missing fields take their default.
        unknown: Tagged fields that the schema does not know, by tag.
    """

    __slots__ = ("_values", "schema", "unknown_tagged_fields")

    def __init__(
        self, schema: Schema, values: Mapping[str, Any] | None = None, unknown: Mapping[int, bytes] | None = None
    ) -> None:
        wrong = set(values or ()) - {item.name for item in schema.fields}
        if wrong:
            raise KeyError(f"{schema.name} has no field {', '.join(sorted(wrong))}")
        self.schema: Schema = schema
        self.unknown_tagged_fields: dict[int, bytes] | None = dict(unknown) if unknown else None
        """As in a `Message`: they are kept and written again."""
        given = values or {}
        self._values = {
            item.name: given[item.name] if item.name in given else schema.default_of(item) for item in schema.fields
        }

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = (f"{item.name}={item.shown(self._values[item.name])}" for item in self.schema.fields)
        return f"{self.schema.name}({', '.join(shown)})"

    def as_dict(self) -> dict[str, Any]:
        """The values as plain dicts and lists, as deep as they go, without unknown tagged fields."""
        return {name: _plain(value) for name, value in self._values.items()}


class Schema:
    """The fields of one version of a message, in the order in which they are written.

    Attributes:
        name: Name of the message.
        message: The class of the message, if it has one.
        version: The version.
        flexible: Whether lengths are varints and tagged fields may follow (KIP-482).
        declared: All fields of the message, of whatever version.
        fields: All fields of the version.
        plain: The fields that are always written.
        tagged: The tagged fields by tag.
    """

    def __init__(
        self,
        name: str,
        declared: tuple[Field, ...],
        version: int,
        flexible: bool,
        message: type[Message] | None = None,
    ) -> None:
        self.name = name
        self.message = message
        self.version = version
        self.flexible = flexible
        self.declared = declared
        self.fields: tuple[Field, ...] = tuple(item for item in declared if version in item.versions)
        self.plain: tuple[Field, ...] = tuple(item for item in self.fields if not item.is_tagged(version))
        self.tagged: dict[int, Field] = {
            item.tag: item for item in self.fields if item.is_tagged(version) and item.tag is not None
        }

    def __repr__(self) -> str:
        inside = ", ".join(f"{item.name}: {item.type}" for item in self.fields)
        return f"Schema({self.name} v{self.version}: {inside})"

    def default_of(self, item: Field) -> Any:
        """The default of a field, as a generic value."""
        if isinstance(item.type, StructType) and item.default is UNSET:
            return Struct(self._nested(item.type))
        return item.new_default()

    def encode(self, value: Any) -> bytes:
        """The bytes of a struct, mapping or message with these fields.

        Raises:
            ValueError: If a value does not fit its field; the text names the field.
            UnsupportedVersionError: If a message has a value in a field that this version lacks.
        """
        out = bytearray()
        self.write(out, value)
        return bytes(out)

    def decode(self, buffer: Buffer) -> Struct:
        """Read a struct that takes the whole buffer.

        Raises:
            ProtocolError: If the bytes are not a valid struct of this schema.
        """
        try:
            value, end = self.read(buffer, 0)
        except (IndexError, ValueError, struct.error) as error:
            value, failed = None, error
        if value is None:  # raised outside of the handler: a UnicodeDecodeError holds the bytes
            cause = None if has_secrets(self.fields) else failed
            raise ProtocolError(f"{self.name} v{self.version} is malformed: {failed}") from cause
        if end != len(buffer):
            raise ProtocolError(f"{len(buffer) - end} bytes follow {self.name} v{self.version}", position=end)
        return value

    # writing

    def write(self, out: bytearray, value: Any, path: str = "") -> None:
        """Append a struct, mapping or message."""
        get = value.__getitem__ if isinstance(value, Mapping) else value.__getattribute__
        if not isinstance(value, Mapping):
            self.check_absent(value)
        for item in self.plain:
            self._write_field(out, item, get(item.name), f"{path}{item.name}")
        if self.flexible:
            known = []
            for tag, item in self.tagged.items():
                if not self._is_default(item, get(item.name)):
                    part = bytearray()
                    self._write_field(part, item, get(item.name), f"{path}{item.name}")
                    known.append((tag, part))
            write_tags(out, known, getattr(value, "unknown_tagged_fields", None))

    def _is_default(self, item: Field, value: Any) -> bool:
        if isinstance(item.type, StructType) and isinstance(value, Mapping):
            return bool(Struct(self._nested(item.type), value) == self.default_of(item))
        return bool(value == item.new_default())

    def check_absent(self, message: Any) -> None:
        """Raise UnsupportedVersionError if a field that this version lacks has a value that matters."""
        for item in self.declared:
            if self.version not in item.versions and not item.ignorable:
                value = getattr(message, item.name)
                if value != item.new_default():
                    raise UnsupportedVersionError(
                        f"{self.name} v{self.version} has no field {item.name} (it has value {item.shown(value)})"
                    )

    def _write_field(self, out: bytearray, item: Field, value: Any, path: str) -> None:
        nullable = self.version in item.nullable
        if value is None and not nullable and item.nullable:
            raise UnsupportedVersionError(f"{path} cannot be null in {self.name} v{self.version}")
        if not item.sensitive:
            self._write_value(out, item.type, value, self._is_compact(item), nullable, path)
        elif not self._written(out, item, value, nullable, path):  # the error behind this one would hold the value
            raise ValueError(
                f"{path}: expected {item.type}, got a {type(value).__name__} that does not fit; it is secret"
            )

    def _written(self, out: bytearray, item: Field, value: Any, nullable: bool, path: str) -> bool:
        try:
            self._write_value(out, item.type, value, self._is_compact(item), nullable, path)
        except Exception:  # noqa: BLE001  (whatever it is, its text may show the value)
            return False
        return True

    def _write_value(
        self, out: bytearray, kind: Type[Any], value: Any, flexible: bool, nullable: bool, path: str
    ) -> None:
        if isinstance(kind, ArrayType):
            self._write_array(out, kind, value, flexible, nullable, path)
        elif isinstance(kind, StructType):
            if nullable:
                out.append(0xFF if value is None else 1)
            if value is not None or not nullable:
                self._nested(kind).write(out, value, f"{path}.")
        else:
            try:
                kind.write(out, value, flexible, nullable)
            except Exception as error:
                raise ValueError(f"{path}: {error}") from error

    def _write_array(
        self, out: bytearray, kind: ArrayType, value: Any, flexible: bool, nullable: bool, path: str
    ) -> None:
        if value is None and nullable:
            kind.write_length(out, -1, flexible)
            return
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{path}: expected a list, got {_shown(kind, value)}")
        kind.write_length(out, len(value), flexible)
        for index, element in enumerate(value):
            self._write_value(out, kind.element, element, flexible, False, f"{path}[{index}]")

    # reading

    def read(self, buffer: Buffer, position: int) -> tuple[Struct, int]:
        """Read a struct at a position; gives it and the position behind it."""
        values: dict[str, Any] = {}
        unknown: dict[int, bytes] = {}
        for item in self.plain:
            values[item.name], position = self._read_field(buffer, position, item)
        if self.flexible:
            count, position = read_uvarint(buffer, position)
            for _ in range(count):
                position = self._read_tag(buffer, position, values, unknown)
        return Struct(self, values, unknown), position

    def _read_tag(self, buffer: Buffer, position: int, values: dict[str, Any], unknown: dict[int, bytes]) -> int:
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise length_error(size, position)
        if tag in self.tagged:
            item = self.tagged[tag]
            values[item.name], position = self._read_field(buffer, position, item)
            if position != end:
                raise ProtocolError(f"tag {tag} has another size than announced", position=position)
        else:
            unknown[tag] = bytes(buffer[position:end])
        return end

    def _read_field(self, buffer: Buffer, position: int, item: Field) -> tuple[Any, int]:
        nullable = self.version in item.nullable
        return self._read_value(buffer, position, item.type, self._is_compact(item), nullable)

    def _read_value(
        self, buffer: Buffer, position: int, kind: Type[Any], flexible: bool, nullable: bool
    ) -> tuple[Any, int]:
        if isinstance(kind, ArrayType):
            return self._read_array(buffer, position, kind, flexible, nullable)
        if isinstance(kind, StructType):
            if nullable:
                present = buffer[position]
                position += 1
                if present > 0x7F:
                    return None, position
            return self._nested(kind).read(buffer, position)
        return kind.read(buffer, position, flexible, nullable)

    def _read_array(
        self, buffer: Buffer, position: int, kind: ArrayType, flexible: bool, nullable: bool
    ) -> tuple[list[Any] | None, int]:
        length, position = kind.read_length(buffer, position, flexible, nullable)
        if length < 0:
            return None, position
        if length > len(buffer) - position:
            raise length_error(length, position)
        values = []
        for _ in range(length):
            value, position = self._read_value(buffer, position, kind.element, flexible, False)
            values.append(value)
        return values, position

    def _is_compact(self, item: Field) -> bool:
        return self.flexible and self.version in item.flexible

    def _nested(self, kind: StructType) -> Schema:
        return schema_of(kind.message, self.version, flexible=self.flexible)


def schema_of(message: type[Message], version: int, *, flexible: bool | None = None) -> Schema:
    """The schema of one version of a message.

    Args:
        message: The message class.
        version: The version.
        flexible: Whether the version is flexible; else the message's own declaration decides.
    """
    if flexible is None:
        flexible = message.is_flexible(version)
    return Schema(message.__name__, message.FIELDS, version, flexible, message)


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return value.as_dict()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


__all__ = ["BYTES", "RECORDS", "ArrayOf", "Field", "Schema", "Struct", "field", "schema_of"]
