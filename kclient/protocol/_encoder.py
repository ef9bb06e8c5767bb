"""Writes the source of encoders.

An encoder says nothing of use when a value does not fit: whatever then fails in it does, and `message` asks the
interpreted `StructWriter` for the reason. Where a wrong value would pass without a failure it is looked at, but for
the numbers and flags, of which there are too many.

An encoder *in steps* is a generator for large messages: it pauses after every few elements and tells how many bytes
it has written. Arrays need a length and an iterator only, so what is in them may be made while it is written.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from kclient.protocol import primitives
from kclient.protocol._source import Source
from kclient.protocol.schema import ArrayType, Declaration, Field, StructType
from kclient.protocol.structs import Schema, schema_of
from kclient.protocol.types import BYTES, RECORDS, STRING, UUID, FixedType, Type, UuidType

_BUFFERS = frozenset({bytes, bytearray, memoryview})


ELEMENTS = 32
"""In steps, elements between two pauses."""
PIECE = 256 * 1024
"""In steps, bytes after which another buffer is begun: a buffer that grows large is copied again and again."""


def encoder_source(message: type[Declaration], version: int, *, in_steps: bool = False) -> Source:
    """The source of `encode(message, out, parts)`, which gives the buffer that is open at the end.

    In steps it is a generator that returns it, and yields the bytes that were written since the last yield.
    """
    source = Source("encode", f"<encoder of {message.__name__} v{version}>")
    writer = _EncoderWriter(source, version, message.is_flexible(version), in_steps=in_steps)
    with source.block("def encode(o, out, parts):"):
        if in_steps:
            source.line("w = 0")
            source.line("told = len(out)")
        writer.struct(schema_of(message, version), "o")
        if in_steps:
            source.line("yield len(out) - told")
        source.line("return out")
    return source


def absent_error() -> Exception:
    """The error for a value in a field that the version does not have."""
    return ValueError("a field that the version lacks has a value")


class _EncoderWriter:
    """Writes statements that append the parts of a message to the local variable `out`."""

    def __init__(self, source: Source, version: int, flexible: bool, *, in_steps: bool = False) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self._tag_depth = 0  # inside of tagged fields `out` is a buffer of its own
        source.constants.update(
            write_uvarint=primitives.write_uvarint,
            write_string_length=primitives.write_string_length,
            write_tags=primitives.write_tags,
            uuid_error=primitives.uuid_error,
            absent_error=absent_error,
            check_buffer=primitives.check_buffer,
            text_array_error=primitives.text_array_error,
            buffers=_BUFFERS,
            i2=Struct(">h").pack,
            i4=Struct(">i").pack,
        )

    # structs

    def struct(self, schema: Schema, name: str) -> None:
        """Append the struct in the local variable `name`."""
        self._refuse_absent(schema, name)
        run: list[Field] = []
        for item in schema.plain:
            if isinstance(item.type, FixedType):
                run.append(item)
                continue
            self._fixed_run(run, name)
            run = []
            self._field(item, f"{name}.{item.name}")
        self._fixed_run(run, name)
        if self.flexible:
            self._tags(schema, name)

    def _refuse_absent(self, schema: Schema, name: str) -> None:
        for item in schema.declared:
            if self.version in item.versions or item.ignorable:
                continue
            self.source.line(f"if {self._differs(item, f'{name}.{item.name}')}: raise absent_error()")

    def _differs(self, item: Field, value: str) -> str:
        """The condition that a field has another value than its default."""
        default = item.new_default()
        if default is None or default is True or default is False:
            return f"{value} is not {default!r}"
        if isinstance(item.type, StructType):
            fields = [self._differs(inner, f"{value}.{inner.name}") for inner in item.type.message.FIELDS]
            return f"({' or '.join([*fields, f'{value}._unknown is not None'])})"
        return f"{value} != {default!r}"

    def _fixed_run(self, run: list[Field], name: str) -> None:
        if not run:
            return
        for item in run:
            if isinstance(item.type, UuidType):
                self._check_uuid(f"{name}.{item.name}")
        values = ", ".join(f"{name}.{item.name}" for item in run)
        self.source.line(f"out += {self._packer(''.join(_code(item.type) for item in run))}({values})")

    def _packer(self, codes: str) -> str:
        safe = codes.replace("?", "Z")  # a letter that struct does not use
        return self.source.constant(f"pack_{safe}", Struct(">" + codes).pack)

    def _check_uuid(self, value: str) -> None:
        self.source.line(f"if len({value}) != 16: raise uuid_error({value})")

    # fields

    def _field(self, item: Field, value: str) -> None:
        compact = self.flexible and self.version in item.flexible
        nullable = self.version in item.nullable
        if isinstance(item.type, StructType):
            self._nested_struct(item.type, value, nullable)
            return
        local = self.source.fresh("v")
        self.source.line(f"{local} = {value}")
        if not nullable:
            self.value(item.type, local, compact)
            return
        with self.source.block(f"if {local} is None:"):
            self._null(item.type, compact)
        with self.source.block("else:"):
            self.value(item.type, local, compact)

    def _null(self, kind: Type[Any], compact: bool) -> None:
        if compact:
            self.source.line("out.append(0)")
        else:
            minus_one = b"\xff" * (2 if kind is STRING else 4)
            self.source.line(f"out += {minus_one!r}")

    def value(self, kind: Type[Any], value: str, compact: bool) -> None:
        """Append a value that is not null and stands in a local variable."""
        if isinstance(kind, ArrayType):
            self._array(kind, value, compact)
        elif isinstance(kind, StructType):
            self.struct(self._schema(kind), value)
        elif kind is STRING:
            self._string(value, compact)
        elif kind is BYTES:
            self._check_buffer(value)
            self._length(f"len({value})", compact)
            self.source.line(f"out += {value}")
        elif kind is RECORDS:
            self._records(value, compact)
        elif isinstance(kind, FixedType):
            if kind is UUID:
                self._check_uuid(value)
            self.source.line(f"out += {self._packer(_code(kind))}({value})")
        else:
            writer = self.source.constant(f"{kind.name}_writer", kind.write)
            self.source.line(f"{writer}(out, {value}, {compact}, False)")

    def _string(self, value: str, compact: bool) -> None:
        line = self.source.line
        data, size = self.source.fresh("s"), self.source.fresh("n")
        line(f"{data} = {value}.encode()")
        line(f"{size} = len({data})")
        if compact:
            line(f"if {size} < 127: out.append({size} + 1)")
            line(f"else: write_string_length(out, {size})")
        else:
            line(f"out += i2({size})")
        line(f"out += {data}")

    def _length(self, size: str, compact: bool) -> None:
        if not compact:
            self.source.line(f"out += i4({size})")
            return
        length = self.source.fresh("n")
        self.source.line(f"{length} = {size} + 1")
        self.source.line(f"if {length} < 128: out.append({length})")
        self.source.line(f"else: write_uvarint(out, {length})")

    def _check_buffer(self, value: str) -> None:
        self.source.line(f"if type({value}) not in buffers: check_buffer({value})")

    def _records(self, value: str, compact: bool) -> None:
        self._check_buffer(value)
        self._length(f"len({value})", compact)
        with self.source.block(f"if len({value}):"):  # a response may have hundreds of thousands that are empty
            if self.in_steps:
                self.source.line("yield len(out) - told")
                self.source.line("told = 0")
            self.source.line("parts.append(out)")
            self.source.line(f"parts.append({value})")
            self.source.line("out = bytearray()")

    def _array(self, kind: ArrayType, value: str, compact: bool) -> None:
        element = kind.element
        if isinstance(element, FixedType) and not isinstance(element, UuidType):
            self._numbers(element, value, compact)
            return
        if not isinstance(element, StructType):
            self.source.line(f"if type({value}) is str: raise text_array_error({value})")
        self._length(f"len({value})", compact)
        local = self.source.fresh("e")
        with self.source.block(f"for {local} in {value}:"):
            self.value(element, local, compact)
            if self.in_steps and not self._tag_depth:
                self._pause()

    def _pause(self) -> None:
        line = self.source.line
        line("w += 1")
        with self.source.block(f"if w > {ELEMENTS}:"):
            line("w = 0")
            line("yield len(out) - told")
            with self.source.block(f"if len(out) > {PIECE}:"):
                line("parts.append(out)")
                line("out = bytearray()")
            line("told = len(out)")

    def _numbers(self, element: FixedType[Any], value: str, compact: bool) -> None:
        array = primitives.array_format(element.code, element.size)
        write = self.source.constant(f"write_array_{element.name}", array.write)
        if not compact:
            self.source.line(f"{write}(out, {value}, False)")
            return
        length = self.source.fresh("n")
        packers = self.source.constant(f"pack_array_{element.name}", array.pack)
        self.source.line(f"{length} = len({value}) + 1")
        self.source.line(f"if {length} <= {primitives.SMALL}: out += {packers}[{length}]({length}, *{value})")
        self.source.line(f"else: {write}(out, {value}, True)")

    def _nested_struct(self, kind: StructType, value: str, nullable: bool) -> None:
        local = self.source.fresh("o")
        self.source.line(f"{local} = {value}")
        if not nullable:
            self.struct(self._schema(kind), local)
            return
        self.source.line(f"if {local} is None: out.append(255)")
        with self.source.block("else:"):
            self.source.line("out.append(1)")
            self.struct(self._schema(kind), local)

    def _schema(self, kind: StructType) -> Schema:
        return schema_of(kind.message, self.version, flexible=self.flexible)

    # tagged fields

    def _tags(self, schema: Schema, name: str) -> None:
        line = self.source.line
        if not schema.tagged:
            line(f"if {name}._unknown is None: out.append(0)")
            line(f"else: write_tags(out, (), {name}._unknown)")
            return
        tags, whole = self.source.fresh("tags"), self.source.fresh("out")
        line(f"{tags} = []")
        for tag, item in schema.tagged.items():
            value = f"{name}.{item.name}"
            with self.source.block(f"if {self._differs(item, value)}:"):
                line(f"{whole} = out")
                line("out = bytearray()")
                self._tag_depth += 1
                if isinstance(item.type, FixedType):
                    self._fixed_run([item], name)
                else:
                    self._field(item, value)
                self._tag_depth -= 1
                line(f"{tags}.append(({tag}, out))")
                line(f"out = {whole}")
        line(f"if {tags} or {name}._unknown is not None: write_tags(out, {tags}, {name}._unknown)")
        line("else: out.append(0)")


def _code(kind: Type[Any]) -> str:
    assert isinstance(kind, FixedType)
    return kind.code
