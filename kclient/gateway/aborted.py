"""The aborted transactions of a log, in chunks: what a reader of committed records has to leave out.

Entries are added in the order of their ends, and never change. So a chunk that is full is written once; it is in
memory until then, and afterwards while somebody reads it (`AbortedChunk.entries`). What is known of every chunk is its
bounds, which the checkpoint holds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

CHUNK: Final = 512
"""Transactions of one chunk."""
_FIELDS: Final = 4
_LAST_OFFSET: Final = attrgetter("bounds.last_offset")
_STABLE_OFFSET: Final = attrgetter("bounds.stable_offset")


class AbortedTxn(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    """Of its first record."""
    last_offset: int
    """Of the control record that ended it."""
    stable_offset: int
    """The last stable offset behind it: no transaction that ends later begins below."""


class ChunkBounds(NamedTuple):
    """What is known of a chunk without reading it."""

    number: int
    first_offset: int
    """The least of its transactions' first offsets."""
    first_end: int
    """The last offset of its first transaction, which is the least one."""
    last_offset: int
    """The last offset of its last transaction, which is the greatest one."""
    stable_offset: int
    """Of its last transaction, the greatest one."""
    transactions: int
    """How many there are."""


class Entries:
    """The transactions of a chunk: four numbers each, in one array."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.numbers: array[int] = array("q", numbers)

    def __len__(self) -> int:
        return len(self.numbers) // _FIELDS

    def __iter__(self) -> Iterator[AbortedTxn]:
        numbers = iter(self.numbers)
        return map(AbortedTxn, numbers, numbers, numbers, numbers)

    def add(self, transaction: AbortedTxn) -> None:
        """One more, which ended behind the others."""
        self.numbers.extend(transaction)

    def copy(self, count: int) -> Entries:
        """The first ones of them, to be added to."""
        return Entries(self.numbers[: count * _FIELDS])


class Hidden:
    """What a reader of committed records has to leave out: aborted transactions that have records in a range.

    They may be very many: each is two numbers, and nothing is made of one before it is told.

    Args:
        first: The first offset of the range.
        until: Its end (exclusive).
    """

    __slots__ = ("_first", "_firsts", "_producers", "_until")

    def __init__(self, first: int, until: int) -> None:
        self._first = first
        self._until = until
        self._producers: array[int] = array("q")
        self._firsts: array[int] = array("q")

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The producer id and the first offset of each."""
        return zip(self._producers, self._firsts, strict=True)

    @property
    def nbytes(self) -> int:
        """How much memory they take, and about as much in an answer."""
        return 2 * self._firsts.itemsize * len(self._firsts)

    def add(self, entries: Entries) -> None:
        """Those of a chunk; chunks come in order."""
        numbers = entries.numbers
        begin = bisect_left(numbers[2::_FIELDS], self._first)
        end = bisect_left(numbers[3::_FIELDS], self._until) + 1  # no transaction that ends later begins below
        producers, firsts = numbers[::_FIELDS][begin:end], numbers[1::_FIELDS][begin:end]
        if firsts and max(firsts) >= self._until:
            inside = [number for number, first in enumerate(firsts) if first < self._until]
            producers = array("q", [producers[number] for number in inside])
            firsts = array("q", [firsts[number] for number in inside])
        self._producers += producers
        self._firsts += firsts


@dataclass(slots=True)
class AbortedChunk:
    """One chunk."""

    bounds: ChunkBounds
    entries: Entries | None = None
    """None where it has to be read."""
    saved: int = 0
    """So many of its transactions have been written."""

    def add(self, transaction: AbortedTxn) -> None:
        """One more, which ended behind the others."""
        assert self.entries is not None
        number, first, first_end, _, _, count = self.bounds
        self.entries.add(transaction)
        self.bounds = ChunkBounds(
            number, min(first, transaction.first_offset), first_end,
            transaction.last_offset, transaction.stable_offset, count + 1,
        )  # fmt: skip


class AbortedTransactions:
    """All aborted transactions of one log that may still be read.

    Args:
        bounds: Of the chunks that were written before, in order.
    """

    __slots__ = ("_chunks",)

    def __init__(self, bounds: Iterable[ChunkBounds] = ()) -> None:
        self._chunks: list[AbortedChunk] = [AbortedChunk(each, None, each.transactions) for each in bounds]

    def __len__(self) -> int:
        return sum(chunk.bounds.transactions for chunk in self._chunks)

    def add(self, transaction: AbortedTxn) -> None:
        """A transaction was aborted; its end is durable, and lies behind those of the others."""
        last = self._chunks[-1] if self._chunks else None
        if last is None or last.entries is None or last.bounds.transactions >= CHUNK:
            _, first, end, stable = transaction
            number = 0 if last is None else last.bounds.number + 1
            last = AbortedChunk(ChunkBounds(number, first, end, end, stable, 0), Entries())
            self._chunks.append(last)
        last.add(transaction)

    def chunks(self, first: int, until: int) -> list[AbortedChunk]:
        """Those that may hold transactions with records from an offset to another (exclusive)."""
        chunks = self._chunks
        begin = bisect_left(chunks, first, key=_LAST_OFFSET)
        end = bisect_left(chunks, until, begin, key=_STABLE_OFFSET) + 1
        return [chunk for chunk in chunks[begin:end] if chunk.bounds.first_offset < until]

    # Written and read again

    @property
    def bounds(self) -> tuple[ChunkBounds, ...]:
        """What a checkpoint has to tell of the chunks."""
        return tuple(chunk.bounds for chunk in self._chunks)

    @property
    def open(self) -> AbortedChunk | None:
        """The chunk that goes on, unless the next one begins another."""
        last = self._chunks[-1] if self._chunks else None
        return last if last is not None and last.bounds.transactions < CHUNK else None

    @property
    def holds_full(self) -> bool:
        """Whether a chunk that is full is in memory, because it has not been written."""
        return any(chunk.entries is not None and chunk.bounds.transactions >= CHUNK for chunk in self._chunks[-2:])

    def unsaved(self) -> dict[int, Entries]:
        """The chunks that are to be written, by their numbers."""
        return {
            chunk.bounds.number: chunk.entries
            for chunk in self._chunks
            if chunk.entries is not None and chunk.saved < chunk.bounds.transactions
        }

    def saved(self, counts: Mapping[int, int]) -> None:
        """So many transactions of these chunks have been written: full chunks are not kept in memory."""
        for chunk in self._chunks:
            chunk.saved = max(chunk.saved, counts.get(chunk.bounds.number, 0))
            if chunk.saved >= CHUNK:
                chunk.entries = None

    def trimmed(self, start: int) -> tuple[ChunkBounds, ...]:
        """The bounds of the chunks that are left when the log begins at an offset."""
        return tuple(chunk.bounds for chunk in self._chunks if chunk.bounds.last_offset >= start)

    def trim(self, start: int) -> None:
        """The log begins at an offset now."""
        kept = bisect_left(self._chunks, start, key=_LAST_OFFSET)
        del self._chunks[:kept]
