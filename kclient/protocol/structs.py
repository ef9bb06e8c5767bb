"""One version of a message, interpreted: its schema, and generic structs that need nothing else.

`schema_of(MetadataRequest, 12)` is the `Schema` of one version: an ordered list of the fields that it has. It reads
and writes generic `Struct`s, plain mappings and messages field by field. The compiled codecs (see `codec`) do the same
for messages, faster and without a word about what is wrong; when they fail, the schema says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kclient.errors import ProtocolError
from kclient.protocol._interpreted import StructReader, StructWriter
from kclient.protocol.errors import title_of
from kclient.protocol.primitives import RawTaggedField, UnknownTags, check_bytes, left_over, unknown_tags
from kclient.protocol.schema import UNSET, Declaration, Field, ShowsItself, StructType
from kclient.types import Buffer


class Struct(Mapping[str, Any], ShowsItself):
    """A value of a `Schema`: a mapping of the version's field names to values.

    What `Schema.decode` returns has structs inside; what a program builds may have plain mappings there, or messages.

    Args:
        schema: The schema that it is a value of.
        values: Values by field name; missing fields take their default, here and in the mappings inside.
        unknown: Tagged fields that the schema does not know, see `Message.unknown_tagged_fields`.

    Raises:
        EncodeError: If the message has no field of a name. (Values are looked at when they are encoded.)
        UnsupportedVersionError: If the version lacks a field that was given a value that matters.
    """

    __slots__ = ("_values", "schema", "unknown_tagged_fields")

    def __init__(
        self, schema: Schema, values: Mapping[str, Any] | None = None, unknown: UnknownTags | None = None
    ) -> None:
        self.schema: Schema = schema
        self.unknown_tagged_fields: list[RawTaggedField] | None = unknown_tags(unknown)
        """As in a `Message`: they are kept and written again."""
        self._values: dict[str, Any] = StructWriter(schema.title).values(schema, values or {})

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
        foreign: Tags of fields that other versions have as tagged ones; Kafka refuses to read them in this one.
    """

    def __init__(
        self,
        name: str,
        declared: tuple[Field, ...],
        version: int,
        flexible: bool,
        message: type[Declaration] | None = None,
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
        tags = {item.tag for item in declared if item.tag is not None and item.versions & item.tagged}
        self.foreign: frozenset[int] = frozenset(tags - set(self.tagged))

    def __repr__(self) -> str:
        inside = ", ".join(f"{item.name}: {item.type}" for item in self.fields)
        return f"Schema({self.name} v{self.version}: {inside})"

    @property
    def title(self) -> str:
        """How errors name the message in this version: "CreateTopics v4 request"."""
        return title_of(self.name, self.version)

    def default_of(self, item: Field) -> Any:
        """The default of a field, as a generic value."""
        if isinstance(item.type, StructType) and item.default is UNSET:
            return Struct(self.nested(item.type))
        return item.new_default()

    def encode(self, value: Any) -> bytes:
        """The bytes of a struct, a mapping or a message with these fields.

        In mappings, at any depth, missing fields take their default, as in Kafka's own classes; a field of another
        version is treated as in a message: its default is dropped, and so is any value if it is `ignorable`.

        Raises:
            EncodeError: If a value does not fit its field, or a field is not one of the message; the text names
                message, version and field.
            UnsupportedVersionError: If this version lacks a field that has a value, or does not allow a null.
        """
        out = bytearray()
        self.write(out, value)
        return bytes(out)

    def decode(self, buffer: Buffer) -> Struct:
        """Read a struct that takes the whole buffer.

        Raises:
            ProtocolError: If the bytes are not a valid struct of this schema; the text names message, version, field
                and the place in the buffer.
        """
        value, end = self.read(buffer, 0)
        if end != len(buffer):
            raise left_over(self.title, buffer, end)
        return value

    def write(self, out: bytearray, value: Any, *, mappings: bool = True) -> None:
        """Append a struct, mapping or message; raises as `encode` does.

        Args:
            out: Where to.
            value: What to write.
            mappings: Whether structs and mappings are allowed; else messages only, as the compiled encoders want them.
        """
        StructWriter(self.title, mappings=mappings).struct(out, self, value)

    def read(self, buffer: Buffer, position: int) -> tuple[Struct, int]:
        """Read a struct at a position; gives it and the position behind it. Raises as `decode` does."""
        check_bytes(buffer)
        reader = StructReader(buffer, position)
        try:
            return reader.struct(self), reader.position
        except ProtocolError as error:
            failed = error.with_traceback(None)  # whose frames hold what was read, and this one
        at = reader.position if failed.position is None else failed.position
        text = ": ".join(part for part in (self.title, reader.place(), failed.message) if part)
        raise ProtocolError(f"{text} (at byte {at})", position=at)

    def nested(self, kind: StructType) -> Schema:
        """The schema of a struct inside, in this version."""
        return schema_of(kind.message, self.version, flexible=self.flexible)

    def is_compact(self, item: Field) -> bool:
        """Whether a field has a varint length."""
        return self.flexible and self.version in item.flexible

    def struct(self, values: dict[str, Any], unknown: list[RawTaggedField]) -> Struct:
        """A struct of this schema that was read."""
        return Struct(self, values, unknown)


def schema_of(message: type[Declaration], version: int, *, flexible: bool | None = None) -> Schema:
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
