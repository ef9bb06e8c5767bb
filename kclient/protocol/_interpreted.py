"""Reading and writing structs field by field, with the way to the field at hand when something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol.errors import EncodeError, no_field, path_text, shortened
from kclient.protocol.lazy_arrays import LazyArray
from kclient.protocol.primitives import RawTaggedField, amount, cut_off, read_uvarint, write_tags
from kclient.protocol.schema import ArrayType, Declaration, Field, StructType, has_secrets, shown
from kclient.protocol.types import Type
from kclient.types import Buffer

_TAGS = "tagged fields"
_MISSING = object()


class Layout(Protocol):
    """What a writer and a reader need of a `Schema`."""

    name: str
    version: int
    flexible: bool
    message: type[Declaration] | None
    declared: tuple[Field, ...]
    fields: tuple[Field, ...]
    plain: tuple[Field, ...]
    tagged: dict[int, Field]
    foreign: frozenset[int]

    def default_of(self, item: Field) -> Any:
        """The default of a field, as a generic value."""
        ...

    def is_compact(self, item: Field) -> bool:
        """Whether a field has a varint length."""
        ...

    def nested(self, kind: StructType) -> Layout:
        """That of a struct inside, in this version."""
        ...

    def struct(self, values: dict[str, Any], unknown: list[RawTaggedField]) -> Any:
        """A struct that was read."""
        ...


class StructWriter:
    """Writes structs, mappings and messages.

    Args:
        title: The name of the whole message, for errors.
        mappings: Whether structs and mappings are taken too, or messages only, as where a compiled encoder has failed.
    """

    def __init__(self, title: str, *, mappings: bool = True) -> None:
        self._title = title
        self._mappings = mappings
        self._path: list[str | int] = []
        self._version: int | None = None

    def struct(self, out: bytearray, schema: Layout, value: Any) -> None:
        """Append a struct; raises EncodeError or UnsupportedVersionError."""
        values = self.values(schema, value)
        for item in schema.plain:
            self._field(out, schema, item, values[item.name])
        if not schema.flexible:
            return
        known = [
            (tag, part)
            for tag, item in schema.tagged.items()
            if (part := self._tagged(schema, item, values[item.name])) is not None
        ]
        try:
            write_tags(out, known, getattr(value, "unknown_tagged_fields", None))
        except (ValueError, TypeError) as error:
            text = str(error)
        else:
            return
        self._refuse(text)

    def values(self, schema: Layout, value: Any) -> dict[str, Any]:
        """A value for each field of the version, from a struct, a mapping or a message."""
        self._version = schema.version
        if self._mappings and isinstance(value, Mapping):
            names = {item.name for item in schema.declared}
            for name in value:
                if name not in names:
                    self._refuse(no_field(name, (item.name for item in schema.fields)))
            given = dict(value)
        elif schema.message is not None and isinstance(value, schema.message):
            given = {item.name: getattr(value, item.name, _MISSING) for item in schema.declared}
            for name, held in given.items():
                if held is _MISSING:
                    self._refuse(f"the field {name} was deleted")
        else:
            wanted = f"{schema.name} or a mapping" if self._mappings else schema.name
            self._refuse(f"expected a {wanted}, got {_safe(schema.declared, value)}")
        for item in schema.declared:
            if schema.version not in item.versions and item.name in given:
                self._absent(item, given[item.name])
        return {
            item.name: given[item.name] if item.name in given else schema.default_of(item) for item in schema.fields
        }

    def _absent(self, item: Field, value: Any) -> None:
        """Refuse a value that matters in a field that the version lacks."""
        default = item.new_default()
        if item.ignorable or value == default:
            return
        if isinstance(value, Mapping) and all(getattr(default, name, _MISSING) == value[name] for name in value):
            return
        self._path.append(item.name)
        given = shortened(value, item.shown)
        text = f"the version has no field {item.name} (it has value {given}), only {item.versions}"
        raise UnsupportedVersionError(self._text(text))

    def _tagged(self, schema: Layout, item: Field, value: Any) -> bytearray | None:
        """The bytes of a tagged field, or None if it has its default, which is not written."""
        if not isinstance(value, Mapping) and value == item.new_default():
            return None
        part = bytearray()
        self._field(part, schema, item, value)
        if isinstance(value, Mapping):  # it may name its defaults or not
            default = bytearray()
            self._field(default, schema, item, schema.default_of(item))
            if part == default:
                return None
        return part

    def _field(self, out: bytearray, schema: Layout, item: Field, value: Any) -> None:
        self._path.append(item.name)
        nullable = schema.version in item.nullable
        if value is None and not nullable and item.nullable:
            raise UnsupportedVersionError(self._text(f"null is possible in {item.nullable} only"))
        if not item.sensitive:
            self._value(out, schema, item.type, value, schema.is_compact(item), nullable)
        elif not self._written(out, schema, item, value, nullable):  # the error behind this one would hold the value
            self._refuse(f"expected {item.type}, got a {type(value).__name__} that does not fit; it is secret")
        self._path.pop()

    def _written(self, out: bytearray, schema: Layout, item: Field, value: Any, nullable: bool) -> bool:
        path = list(self._path)
        try:
            self._value(out, schema, item.type, value, schema.is_compact(item), nullable)
        except Exception:  # noqa: BLE001  (whatever it is, its text may show the value)
            self._path = path
            return False
        return True

    def _value(
        self, out: bytearray, schema: Layout, kind: Type[Any], value: Any, flexible: bool, nullable: bool
    ) -> None:
        if isinstance(kind, ArrayType):
            self._array(out, schema, kind, value, flexible, nullable)
        elif isinstance(kind, StructType):
            if nullable:
                out.append(0xFF if value is None else 1)
            if value is not None or not nullable:
                self.struct(out, schema.nested(kind), value)
        else:
            try:
                kind.write(out, value, flexible, nullable)
            except Exception as error:  # noqa: BLE001  (a value can be of any class)
                text = str(error)
            else:
                return
            self._refuse(text)

    def _array(
        self, out: bytearray, schema: Layout, kind: ArrayType, value: Any, flexible: bool, nullable: bool
    ) -> None:
        if value is None and nullable:
            kind.write_length(out, -1, flexible)
            return
        if isinstance(value, LazyArray) and not self._mappings:
            self._last_of(out, schema, kind, value, flexible)
            return
        if not isinstance(value, list | tuple):
            self._refuse(f"expected a list, got {shortened(value, lambda given: shown(kind, given))}")
        kind.write_length(out, len(value), flexible)
        for index, element in enumerate(value):
            self._path.append(index)
            self._value(out, schema, kind.element, element, flexible, nullable=False)
            self._path.pop()

    def _last_of(self, out: bytearray, schema: Layout, kind: ArrayType, value: LazyArray[Any], flexible: bool) -> None:
        """Its elements were made for the encoder, and are not there again: the last is the one that may not fit."""
        if value.made:
            self._path.append(value.made - 1)
            self._value(out, schema, kind.element, value.last, flexible, nullable=False)
            self._path.pop()

    def _refuse(self, text: str) -> NoReturn:
        raise EncodeError(self._text(text), path=path_text(self._path), version=self._version)

    def _text(self, text: str) -> str:
        return ": ".join(part for part in (self._title, path_text(self._path), text) if part)


def _safe(fields: tuple[Field, ...], value: Any) -> str:
    if value is None or not has_secrets(fields):
        return shortened(value)
    return f"a {type(value).__name__}"


class StructReader:
    """Reads structs from a buffer.

    Attributes:
        position: Where the next value begins, or where the one began that could not be read.
    """

    def __init__(self, buffer: Buffer, position: int) -> None:
        self._buffer = buffer
        self.position = position
        self._path: list[str | int] = []

    def place(self) -> str:
        """The field that is being read, or "" outside of fields."""
        return path_text(self._path)

    def struct(self, schema: Layout) -> Any:
        """Read a struct; raises ProtocolError, without a word about the field."""
        values: dict[str, Any] = {}
        unknown: list[RawTaggedField] = []
        for item in schema.plain:
            values[item.name] = self._field(schema, item)
        if schema.flexible:
            self._path.append(_TAGS)
            for _ in range(self._varint("their number")):
                self._tag(schema, values, unknown)
            self._path.pop()
        return schema.struct(values, unknown)

    def _tag(self, schema: Layout, values: dict[str, Any], unknown: list[RawTaggedField]) -> None:
        tag = self._varint("a tag")
        size = self._varint("a size")
        end = self.position + size
        if end > len(self._buffer):
            raise cut_off(f"tagged field {tag}", size, self._buffer, self.position)
        if tag in schema.tagged:
            item = schema.tagged[tag]
            self._path.pop()
            values[item.name] = self._field(schema, item)
            self._path.append(_TAGS)
            if self.position != end:
                raise ProtocolError(f"tagged field {tag} does not take the {size} bytes announced", position=end)
        elif tag in schema.foreign:
            raise ProtocolError(f"the version has no tagged field {tag}", position=self.position)
        else:
            unknown.append(RawTaggedField(tag, bytes(self._buffer[self.position : end])))
        self.position = end

    def _varint(self, what: str) -> int:
        start = self.position
        try:
            value, self.position = read_uvarint(self._buffer, start)
        except IndexError:
            value = None
        if value is None:
            raise ProtocolError(f"cut off inside of {what}, at least 1 byte is missing", position=start)
        return value

    def _field(self, schema: Layout, item: Field) -> Any:
        self._path.append(item.name)
        value = self._value(schema, item.type, schema.is_compact(item), schema.version in item.nullable)
        self._path.pop()
        return value

    def _value(self, schema: Layout, kind: Type[Any], flexible: bool, nullable: bool) -> Any:
        if isinstance(kind, ArrayType):
            return self._array(schema, kind, flexible, nullable)
        if isinstance(kind, StructType):
            if nullable:
                if self.position >= len(self._buffer):
                    raise cut_off("the mark of null", 1, self._buffer, self.position)
                present = self._buffer[self.position]
                self.position += 1
                if present > 0x7F:
                    return None
            return self.struct(schema.nested(kind))
        try:
            value, self.position = kind.read(self._buffer, self.position, flexible, nullable)
        except IndexError:
            pass
        else:
            return value
        raise ProtocolError("cut off inside of a varint or length, at least 1 byte is missing", position=self.position)

    def _array(self, schema: Layout, kind: ArrayType, flexible: bool, nullable: bool) -> list[Any] | None:
        try:
            length, self.position = kind.read_length(self._buffer, self.position, flexible, nullable)
        except IndexError:
            length = None
        if length is None:
            raise ProtocolError("cut off inside of a length, at least 1 byte is missing", position=self.position)
        if length < 0:
            return None
        left = len(self._buffer) - self.position
        if length > left:
            claim = "1 element" if length == 1 else f"{length} elements"
            rest = f"only {amount(left)} {'is' if left == 1 else 'are'} left" if left else "nothing is left"
            raise ProtocolError(f"an array claims {claim}, {rest}", position=self.position)
        values = []
        for index in range(length):
            self._path.append(index)
            values.append(self._value(schema, kind.element, flexible, nullable=False))
            self._path.pop()
        return values
