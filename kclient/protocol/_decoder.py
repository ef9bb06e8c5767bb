"""Writes the source of decoders.

Bounds are mostly not checked where a value is read: indexing and `struct` fail behind the end of the buffer, and the
caller compares the position at the end with the size. What a malformed length could make large is checked: arrays of
numbers, and arrays whose elements may take no bytes at all. What is wrong with the bytes is not said here: when a
decoder fails, `message` asks the interpreted `StructReader`.

In flexible versions most things begin with a length of one byte. That byte is read together with the fixed-width
fields before it; it is then in a local variable, and the position is behind it.

Neighbours that look alike are read by functions written for their layout, see `_runs`.

A decoder *in steps* is a generator for large messages of peers that are not trusted: it pauses after every few
elements and tells how much memory they take. It reads the buffer in place, as copying a large one would take long too.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from kclient.errors import ProtocolError
from kclient.protocol import primitives
from kclient.protocol._runs import Runs, can_run
from kclient.protocol._source import Source
from kclient.protocol.schema import ArrayType, Declaration, Field, StructType
from kclient.protocol.structs import Schema, schema_of
from kclient.protocol.types import BYTES, RECORDS, STRING, FixedType, LengthType, Type

COPIED = 1 << 20
"""In steps, bytes in one field that are copied at once; more of them stay where they are, as records do."""
STEP = 16 * 1024
"""Bytes of memory between two pauses: some ten microseconds of work."""
_MEMORY_OF_TEXT = 72
_MEMORY_OF_NUMBER = 40
_NUMBERS_AT_ONCE = 1024


def decoder_source(message: type[Declaration], version: int, *, in_steps: bool = False) -> Source:
    """The source of `decode(b, p)`, which gives the message and the position behind it.

    In steps it is a generator that returns them, and yields the bytes of memory that were taken since the last yield.
    """
    source = Source("decode", f"<decoder of {message.__name__} v{version}>")
    schema = schema_of(message, version)
    in_place = in_steps or _has_records(schema)
    writer = _DecoderWriter(source, version, schema.flexible, from_bytes=not in_place, in_steps=in_steps)
    with source.block("def decode(b, p):"):
        if in_place:
            source.line("view = memoryview(b)")
        else:
            # one copy of the frame is cheaper than indexing and slicing a view many times
            source.line("if type(b) is not bytes: b = bytes(b)")
        if in_steps:
            source.line("w = 0")
        writer.first = source.place()
        writer.struct(schema, "o")
        if in_steps:
            source.line("if w: yield w")
        source.line("return o, p")
    return source


def _has_records(schema: Schema) -> bool:
    return any(
        item.type is RECORDS
        or (isinstance(inner := _inner(item.type), StructType) and _has_records(_nested(inner, schema)))
        for item in schema.fields
    )


def _inner(kind: Type[Any]) -> Type[Any]:
    return kind.element if isinstance(kind, ArrayType) else kind


def _nested(kind: StructType, schema: Schema) -> Schema:
    return schema_of(kind.message, schema.version, flexible=schema.flexible)


class _DecoderWriter:
    """Writes statements that read from the buffer `b` at position `p` and move `p` on.

    `from_bytes` says that `b` is of type bytes, so that slices are bytes too. In steps, `w` is the memory taken since
    the last yield.
    """

    def __init__(
        self, source: Source, version: int, flexible: bool, *, from_bytes: bool, in_steps: bool = False
    ) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.from_bytes = from_bytes
        self.in_steps = in_steps
        self.first: Callable[[str], None] = source.line
        """Adds a line at the beginning of the function."""
        self._lengths: list[str] = []  # the local variables with the lengths of arrays of numbers
        source.constants.update(
            new=object.__new__,
            read_length=primitives.read_length,
            read_string=primitives.read_string,
            read_uvarint=primitives.read_uvarint,
            read_unknown_tags=primitives.unknown_tags_in_steps if in_steps else primitives.read_unknown_tags,
            null_error=primitives.null_error,
            length_error=primitives.length_error,
            tag_error=tag_error,
            foreign_tag_error=foreign_tag_error,
            RawTaggedField=primitives.RawTaggedField,
            i2=Struct(">h").unpack_from,
            i4=Struct(">i").unpack_from,
        )

    # structs

    def struct(self, schema: Schema, name: str) -> None:
        """Read a struct into the local variable `name`."""
        line = self.source.line
        cls = self.source.constant(schema.name, _class_of(schema))
        line(f"{name} = new({cls})")
        for item in schema.declared:
            if item not in schema.plain:
                line(f"{name}.{item.name} = {self._default(item)}")
        byte: str | None = None  # the local variable that holds the next length byte, if it was read already
        plain = list(schema.plain)
        while plain:
            if isinstance(plain[0].type, FixedType) and byte is None:
                run = [plain.pop(0)]
                while plain and isinstance(plain[0].type, FixedType):
                    run.append(plain.pop(0))
                byte = self._fixed_run(run, name, self._byte_follows(plain))
            else:
                item = plain.pop(0)
                self._field(item, f"{name}.{item.name}", byte)
                byte = None
        if self.flexible:
            self._tags(schema, name, byte)
        else:
            line(f"{name}._unknown = None")

    def _byte_follows(self, rest: list[Field]) -> bool:
        """Whether what follows begins with a length byte: a compact value, or the number of tagged fields."""
        if not self.flexible:
            return False
        return not rest or (isinstance(rest[0].type, LengthType) and self.version in rest[0].flexible)

    def _default(self, item: Field) -> str:
        default = item.new_default()
        if default is None or isinstance(default, bool | int | float | str | bytes):
            return repr(default)
        if isinstance(default, list):
            return "[]"
        return self.source.constant(type(default).__name__, type(default)) + "()"

    def _fixed_run(self, run: list[Field], name: str, with_byte: bool) -> str | None:
        codes = "".join(_fixed(item.type).code for item in run)
        targets = [f"{name}.{item.name}" for item in run]
        size = Struct(">" + codes).size
        byte = None
        if with_byte:
            byte = self.source.fresh("n")
            codes += "B"
            targets.append(byte)
            size += 1
        self.source.line(f"{', '.join(targets)}, = {self._unpacker(codes)}(b, p)")
        self.source.line(f"p += {size}")
        return byte

    def _unpacker(self, codes: str) -> str:
        safe = codes.replace("?", "Z")  # a letter that struct does not use
        return self.source.constant(f"unpack_{safe}", Struct(">" + codes).unpack_from)

    # fields

    def _field(self, item: Field, target: str, byte: str | None = None) -> None:
        """Read a field into `target`; its first length byte may have been read already, into `byte`."""
        nullable = self.version in item.nullable
        compact = self.flexible and self.version in item.flexible
        kind = item.type
        if isinstance(kind, StructType):
            self._nested_struct(kind, target, nullable)
        elif isinstance(kind, ArrayType) and _is_numbers(kind) and compact:
            self._compact_numbers(kind, target, byte or self._byte(), nullable)
        else:
            self.value(kind, target, compact, nullable, byte)

    def _byte(self) -> str:
        byte = self.source.fresh("n")
        self.source.line(f"{byte} = b[p]")
        self.source.line("p += 1")
        return byte

    def value(self, kind: Type[Any], target: str, compact: bool, nullable: bool, byte: str | None = None) -> None:
        """Read a value and assign it to `target`."""
        if isinstance(kind, FixedType):
            self.source.line(f"{target}, = {self._unpacker(kind.code)}(b, p)")
            self.source.line(f"p += {kind.size}")
        elif isinstance(kind, StructType):
            local = self.source.fresh("o")
            self.struct(schema_of(kind.message, self.version, flexible=self.flexible), local)
            self.source.line(f"{target} = {local}")
        elif not isinstance(kind, LengthType):
            reader = self.source.constant(f"{kind.name}_reader", kind.read)
            self.source.line(f"{target}, p = {reader}(b, p, {compact}, False)")
        elif kind is STRING and compact:
            self._compact_string(target, nullable, byte or self._byte())
        else:
            self._with_length(kind, target, nullable, self._length(kind, compact, byte))

    def _compact_string(self, target: str, nullable: bool, byte: str) -> None:
        line = self.source.line
        if nullable:
            line(f"if {byte} == 0: {target} = None")
        with self.source.block(f"{'elif' if nullable else 'if'} 0 < {byte} < 128:"):
            end = self.source.fresh("q")
            line(f"{end} = p + {byte} - 1")
            line(f"{target} = {self._text(f'b[p:{end}]')}")
            line(f"p = {end}")
        line(f"else: {target}, p = read_string(b, p, {byte}, {nullable})")

    def _text(self, data: str) -> str:
        return f"{data}.decode()" if self.from_bytes else f'str({data}, "utf-8")'

    def _length(self, kind: LengthType[Any], compact: bool, byte: str | None) -> str:
        """Read a length, -1 for null, into a local variable."""
        line = self.source.line
        size = self.source.fresh("n")
        if compact:
            byte = byte or self._byte()
            line(f"{size} = {byte} - 1")
            with self.source.block(f"if {size} > 126:"):
                line(f"{size}, p = read_length(b, p, {byte})")
                line(f"{size} -= 1")
        else:
            line(f"{size}, = {'i4' if kind.wide else 'i2'}(b, p)")
            line(f"p += {4 if kind.wide else 2}")
        return size

    def _with_length(self, kind: LengthType[Any], target: str, nullable: bool, size: str) -> None:
        line = self.source.line
        with self.source.block(f"if {size} < 0:"):
            if nullable:
                line(f"if {size} < -1: raise length_error({size}, p)")
                line(f"{target} = None")
            else:
                line(f"raise null_error(p) if {size} == -1 else length_error({size}, p)")
        with self.source.block("else:"):
            if isinstance(kind, ArrayType):
                self._elements(kind, target, size)
                return
            end = self.source.fresh("q")
            line(f"{end} = p + {size}")
            if kind is STRING:
                line(f"{target} = {self._text(f'b[p:{end}]')}")
            elif kind is BYTES and self.in_steps:
                line(f"{target} = bytes(b[p:{end}]) if {size} <= {COPIED} else view[p:{end}]")
            elif kind is BYTES:
                line(f"{target} = b[p:{end}]" if self.from_bytes else f"{target} = bytes(b[p:{end}])")
            else:
                line(f"{target} = view[p:{end}]")
            line(f"p = {end}")

    # arrays

    def _compact_numbers(self, kind: ArrayType, target: str, byte: str, nullable: bool) -> None:
        line = self.source.line
        self._lengths.append(byte)
        unpack, size = self._unpackers(kind)
        read = self.source.constant(f"read_array_{kind.element.name}", _array(kind).read)
        with self.source.block(f"if 1 < {byte} <= {primitives.SMALL}:"):
            line(f"{target} = list({unpack}[{byte} - 1](b, p))")
            line(f"p += {byte} * {size} - {size}")
        line(f"elif {byte} == 1: {target} = []")
        if nullable:
            line(f"elif {byte} == 0: {target} = None")
        if not self.in_steps:
            line(f"else: {target}, p = {read}(b, p, {byte}, {nullable})")
            return
        with self.source.block("else:"):
            count = self.source.fresh("n")
            line(f"{count}, p = read_length(b, p, {byte})")
            line(f"if {count} == 0: raise null_error(p)")
            self._numbers_in_steps(kind, target, f"{count} - 1")

    def _unpackers(self, kind: ArrayType) -> tuple[str, int]:
        """The name of the table of unpackers by count, and the width of an element."""
        element = _fixed(kind.element)
        return self.source.constant(f"unpack_array_{element.name}", _array(kind).unpack), element.size

    def _elements(self, kind: ArrayType, target: str, size: str) -> None:
        line = self.source.line
        if _is_numbers(kind):
            unpack, width = self._unpackers(kind)
            read = self.source.constant(f"read_values_{kind.element.name}", _array(kind).read_values)
            with self.source.block(f"if {size} < {primitives.SMALL}:"):
                line(f"{target} = list({unpack}[{size}](b, p))")
                line(f"p += {size} * {width}")
            if self.in_steps:
                with self.source.block("else:"):
                    self._numbers_in_steps(kind, target, size)
            else:
                line(f"else: {target}, p = {read}(b, p, {size})")
            return
        if self._min_size(kind.element) == 0:
            line(f"if {size} > len(b) - p: raise length_error({size}, p)")
        values, add, local = (self.source.fresh(stem) for stem in ("a", "add", "e"))
        line(f"{values} = []")
        line(f"{add} = {values}.append")
        if isinstance(kind.element, StructType):
            schema = schema_of(kind.element.message, self.version, flexible=self.flexible)
            if self.from_bytes and can_run(schema):
                self._alike(schema, add, local, size)
            else:
                with self.source.block(f"for _ in range({size}):"):
                    self.struct(schema, local)
                    line(f"{add}({local})")
                    self._count(_memory_of(schema))
        else:
            with self.source.block(f"for _ in range({size}):"):
                self.value(kind.element, local, self.flexible, False)
                line(f"{add}({local})")
                self._count(_MEMORY_OF_TEXT)
        line(f"{target} = {values}")

    def _count(self, memory: int) -> None:
        """In steps: an element was read that takes so much memory, and it may be time to pause."""
        if self.in_steps:
            self.source.line(f"w += {memory}")
            with self.source.block(f"if w > {STEP}:"):
                self._pause("w")
                self.source.line("w = 0")

    def _pause(self, memory: str) -> None:
        # what was read behind the end is found out here, and not when the array's length has run out
        self.source.line("if p > len(b): raise IndexError")
        self.source.line(f"yield {memory}")

    def _numbers_in_steps(self, kind: ArrayType, target: str, size: str) -> None:
        line = self.source.line
        array = _array(kind)
        read = self.source.constant(f"read_some_{kind.element.name}", array.read_values)
        left, some, values = (self.source.fresh(stem) for stem in ("left", "some", "a"))
        line(f"{left} = {size}")
        line(f"if {left} * {array.size} > len(b) - p: raise length_error({left}, p)")
        line(f"{values} = []")
        with self.source.block(f"while {left} > 0:"):
            line(f"{some}, p = {read}(b, p, min({left}, {_NUMBERS_AT_ONCE}))")
            line(f"{values} += {some}")
            line(f"{left} -= {_NUMBERS_AT_ONCE}")
            self._pause(f"{_NUMBERS_AT_ONCE * _MEMORY_OF_NUMBER}")
        line(f"{target} = {values}")

    def _alike(self, schema: Schema, add: str, local: str, size: str) -> None:
        """Read elements that may be alike: by the run reader of the last layout as far as it goes, else one by one."""
        line = self.source.line
        layout, run, found = (self.source.fresh(stem) for stem in ("layout", "run", "found"))
        self.first(f"{layout} = {run} = None")
        runs = self.source.constant(f"runs_of_{schema.name}", self._runs(schema))
        line(f"if {run}: p, {size} = {run}(b, p, {size}, {add})")
        with self.source.block(f"while {size} > 0:"):
            self._lengths = []
            self.struct(schema, local)
            line(f"{add}({local})")
            line(f"{size} -= 1")
            line(f"{found} = {', '.join(self._lengths)},")
            with self.source.block(f"if {found} == {layout}:"):
                line(f"{run} = {runs}[{found}]")
                line(f"if {run}: p, {size} = {run}(b, p, {size}, {add})")
            line(f"else: {layout}, {run} = {found}, None")

    def _runs(self, schema: Schema) -> Runs:
        lacking = [item for item in schema.declared if item not in schema.plain]
        defaults = [f"e.{item.name} = {self._default(item)}" for item in lacking]
        return Runs(_class_of(schema), schema, defaults, self.source.constants)

    def _min_size(self, kind: Type[Any]) -> int:
        if isinstance(kind, StructType):
            schema = schema_of(kind.message, self.version, flexible=self.flexible)
            return int(self.flexible) + sum(self._min_size(item.type) for item in schema.plain)
        return kind.min_size(self.flexible)

    def _nested_struct(self, kind: StructType, target: str, nullable: bool) -> None:
        if not nullable:
            self.value(kind, target, self.flexible, nullable=False)
            return
        byte = self._byte()
        self.source.line(f"if {byte} > 127: {target} = None")
        with self.source.block("else:"):
            self.value(kind, target, self.flexible, nullable=False)

    # tagged fields

    def _tags(self, schema: Schema, name: str, byte: str | None) -> None:
        line = self.source.line
        byte = byte or self._byte()
        if not schema.tagged and not schema.foreign:
            wait = "yield from " if self.in_steps else ""
            line(f"if {byte}: {name}._unknown, p = {wait}read_unknown_tags(b, p, {byte})")
            line(f"else: {name}._unknown = None")
            return
        line(f"{name}._unknown = None")
        count, tag, size, end = (self.source.fresh(stem) for stem in ("count", "tag", "size", "end"))
        with self.source.block(f"if {byte}:"):
            line(f"{count}, p = read_length(b, p, {byte})")
            with self.source.block(f"for _ in range({count}):"):
                line(f"{tag}, p = read_uvarint(b, p)")
                line(f"{size}, p = read_uvarint(b, p)")
                line(f"{end} = p + {size}")
                word = "if"
                for number, item in schema.tagged.items():
                    with self.source.block(f"{word} {tag} == {number}:"):
                        self._field(item, f"{name}.{item.name}")
                        line(f"if p != {end}: raise tag_error({tag}, {size}, p)")
                    word = "elif"
                for number in sorted(schema.foreign):
                    line(f"{word} {tag} == {number}: raise foreign_tag_error({tag}, p)")
                    word = "elif"
                with self.source.block("else:"):
                    line(f"if {name}._unknown is None: {name}._unknown = []")
                    line(f"{name}._unknown.append(RawTaggedField({tag}, bytes(b[p:{end}])))")
                    line(f"p = {end}")
                self._count(primitives.MEMORY_OF_TAG)


def tag_error(tag: int, size: int, position: int) -> Exception:
    """The error for a tagged field whose content has another size than announced."""
    return ProtocolError(f"tagged field {tag} does not take the {size} bytes announced", position=position)


def foreign_tag_error(tag: int, position: int) -> Exception:
    """The error for a tagged field that other versions have, and this one does not."""
    return ProtocolError(f"the version has no tagged field {tag}", position=position)


def _memory_of(schema: Schema) -> int:
    """About how many bytes an element takes as an object, without the characters of texts and what arrays hold."""
    objects = sum(32 if isinstance(item.type, FixedType) else 64 for item in schema.plain)
    return 64 + 8 * len(schema.declared) + objects


def _class_of(schema: Schema) -> type[Declaration]:
    assert schema.message is not None
    return schema.message


def _fixed(kind: Type[Any]) -> FixedType[Any]:
    assert isinstance(kind, FixedType)
    return kind


def _is_numbers(kind: ArrayType) -> bool:
    return isinstance(kind.element, FixedType)


def _array(kind: ArrayType) -> primitives.ArrayFormat:
    element = _fixed(kind.element)
    return primitives.array_format(element.code, element.size)
