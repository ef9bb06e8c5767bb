"""Readers of elements that look alike, written while decoding.

The partitions of a large Metadata response nearly all have the same number of replicas, so that their arrays of
numbers begin at the same places. When a layout has come often enough, a function is written that reads one element
after the other with a single `struct` call each, as long as the lengths are those of the layout; what looks different
is left to the decoder (see `_decoder`), which knows every layout.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from struct import Struct
from typing import Any, TypeAlias

from kclient.protocol import primitives
from kclient.protocol._source import Source
from kclient.protocol.schema import ArrayType, Declaration
from kclient.protocol.structs import Schema
from kclient.protocol.types import FixedType

Lengths: TypeAlias = tuple[int, ...]
"""What makes a layout: the length bytes of the arrays of an element, each one above the number of values."""
Run: TypeAlias = Callable[[bytes, int, int, Callable[[Any], None]], tuple[int, int]]
"""Reads `left` elements at most and hands each on; gives the position behind them, and how many are left."""

WORTH = 64
"""How many neighbours of one layout must have been seen before a function is written for it."""
MOST = 32
"""Functions per declaration; others than the first layouts are read without one."""


def can_run(schema: Schema) -> bool:
    """Whether lengths alone make the layout: only fields of fixed width, and at least one array of numbers."""
    arrays = [item for item in schema.plain if not isinstance(item.type, FixedType)]
    return (
        schema.flexible
        and bool(arrays)
        and not schema.tagged
        and all(
            isinstance(item.type, ArrayType)
            and isinstance(item.type.element, FixedType)
            and schema.version in item.flexible
            for item in arrays
        )
    )


class Runs(dict[Lengths, "Run | None"]):
    """The run readers of one version of a struct by layout: `runs[lengths]` is None where there is none yet.

    Args:
        message: The class of the elements.
        schema: Its fields in the version.
        defaults: Statements that set the fields of `e` that the version lacks, and what they refer to.
    """

    def __init__(
        self, message: type[Declaration], schema: Schema, defaults: list[str], constants: dict[str, Any]
    ) -> None:
        super().__init__()
        self._message = message
        self._schema = schema
        self._defaults = defaults
        self._constants = constants
        self._seen: dict[Lengths, int] = {}

    def __missing__(self, lengths: Lengths) -> Run | None:
        seen = self._seen.get(lengths, 0) + 1
        if seen < WORTH:
            if len(self._seen) < MOST or lengths in self._seen:
                self._seen[lengths] = seen
            return None
        small = all(0 < length <= primitives.SMALL for length in lengths)
        run = self[lengths] = self._write(lengths) if small else None
        return run

    def _write(self, lengths: Lengths) -> Run:
        source = self.source(lengths)
        code = compile(source.text(), source.title, "exec")
        exec(code, source.constants)  # noqa: S102  (source from our own declarations)
        run: Run = source.constants[source.name]
        return run

    def source(self, lengths: Lengths) -> Source:
        """The source of the reader of one layout."""
        schema = self._schema
        source = Source("run", f"<run of {schema.name} v{schema.version}>")
        codes, targets, checks, arrays = self._parts(lengths)
        layout = Struct(">" + codes)
        source.constants.update(self._constants, new=object.__new__, repeat=repeat, cls=self._message)
        source.constants["unpack"] = layout.unpack_from
        with source.block("def run(b, p, left, add):"):
            source.line("start = p")
            # none is read that does not lie wholly inside of the buffer
            source.line(f"most = min(left, (len(b) - p) // {layout.size})")
            with source.block("for e in map(new, repeat(cls, most)):"):
                source.line(f"{', '.join(targets)} = unpack(b, p)")
                source.line(f"if {' or '.join(checks)}: break")
                for statement in [*arrays, *self._defaults, "e._unknown = None", "add(e)"]:
                    source.line(statement)
                source.line(f"p += {layout.size}")
            source.line(f"return p, left - (p - start) // {layout.size}")
        return source

    def _parts(self, lengths: Lengths) -> tuple[str, list[str], list[str], list[str]]:
        """The struct format, what its values go to, the conditions under which it is another layout, the arrays."""
        codes = ""
        targets: list[str] = []
        checks: list[str] = []
        arrays: list[str] = []
        expected = iter(lengths)
        for item in self._schema.plain:
            if isinstance(item.type, FixedType):
                codes += item.type.code
                targets.append(f"e.{item.name}")
                continue
            assert isinstance(item.type, ArrayType)
            assert isinstance(item.type.element, FixedType)
            length = next(expected)
            count = len(arrays)
            values = [f"v{count}_{index}" for index in range(length - 1)]
            codes += "B" + item.type.element.code * (length - 1)
            targets += [f"n{count}", *values]
            checks.append(f"n{count} != {length}")
            arrays.append(f"e.{item.name} = [{', '.join(values)}]")
        # and no tagged fields
        return codes + "B", [*targets, "tags"], [*checks, "tags"], arrays
