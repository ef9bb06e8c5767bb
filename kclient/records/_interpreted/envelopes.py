"""Batches among messages that hold one each, in an envelope that says whose it is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

from kclient.records.arguments import as_buffer, integer
from kclient.records.batch_header import HEADER_SIZE
from kclient.records.bounds import INT64_MAX
from kclient.records.envelope_layout import (
    EnvelopeLayout,
    check_first,
    check_key,
    check_layout,
    check_numbers,
    check_target,
    not_there,
)
from kclient.types import Buffer

_OTHER: Final = -1
"""The key of a message that holds no batch."""


class EnvelopedBatches:
    """Where the batches lie among messages that hold one each, in an envelope; nothing of them is copied.

    Messages are numbered one after the other. What follows on one that is not whole, or not the one that is due, is
    left out. Batches are not looked at, but for their base offsets.

    Args:
        messages: One behind the other. They may not change.
        first: The number of the first one, from 0 on.
        layout: What an envelope looks like.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is out of its range.
    """

    __slots__ = ("_ends", "_first", "_head", "_keys", "_messages", "_offsets")

    def __init__(self, messages: Buffer, first: int, layout: EnvelopeLayout) -> None:
        check_layout(layout)
        self._messages = memoryview(as_buffer(messages, "messages"))
        self._first = check_first(first)
        self._head = layout.size
        self._keys, self._offsets, self._ends = array("q"), array("q"), array("q")
        self._walk(layout)

    def _walk(self, layout: EnvelopeLayout) -> None:
        head, mark, others = layout.size, layout.mark, ~layout.kinds
        look, messages, end = _fields(layout).unpack_from, self._messages, len(self._messages)
        keys, offsets, ends = self._keys, self._offsets, self._ends
        place, number = 0, self._first
        while place + head + HEADER_SIZE <= end:
            word, length, key, found, offset = look(messages, place)
            place += head + length
            if found != number or length < HEADER_SIZE or place > end:
                break
            if word != mark:
                if (word ^ mark) & others:
                    break
                key = _OTHER
            keys.append(key)
            offsets.append(offset)
            ends.append(place)
            number += 1

    @property
    def first(self) -> int:
        """The number of the first message."""
        return self._first

    @property
    def next(self) -> int:
        """The number behind the last message."""
        return self._first + len(self._keys)

    def place(self, number: int) -> tuple[int, int]:
        """Where in the messages a batch begins, and where it ends.

        Args:
            number: Of its message.

        Raises:
            TypeError: It is no integer.
            ValueError: There is no such message, or it holds no batch.
        """
        return self._place(integer("number", number, 0, INT64_MAX))

    def _place(self, number: int) -> tuple[int, int]:
        at = number - self._first
        if not 0 <= at < len(self._keys) or self._keys[at] == _OTHER:
            raise not_there(number)
        return (self._ends[at - 1] if at else 0) + self._head, self._ends[at]

    def select(
        self, key: int, numbers: array[int], offsets: array[int], start: int, most: int, room: int
    ) -> tuple[int, int]:
        """How many of somebody's batches are here and have room, one after the other; and their bytes.

        Each has to be in the message with its number, under the key, with its base offset. The first one needs no room.

        Args:
            key: Whose they are.
            numbers: Those of the messages (type code "q").
            offsets: The base offsets, in parallel.
            start: Where in the arrays to begin.
            most: No more batches than this.
            room: In bytes.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: A number is out of its range.
        """
        check_key(key)
        check_numbers("numbers", numbers)
        check_numbers("offsets", offsets)
        start = integer("start", start, 0, INT64_MAX)
        most, room = integer("most", most, 0, INT64_MAX), integer("room", room, 0, INT64_MAX)
        first, head, keys, bases, ends = self._first, self._head, self._keys, self._offsets, self._ends
        count = size = 0
        for number in range(start, min(len(numbers), len(offsets), start + most)):
            at = numbers[number] - first
            if not 0 <= at < len(keys) or keys[at] != key or bases[at] != offsets[number]:
                break
            length = ends[at] - (ends[at - 1] if at else 0) - head
            if count and size + length > room:
                break
            count += 1
            size += length
        return count, size


def gather_batches(
    pieces: Sequence[tuple[EnvelopedBatches, array[int], int, int]], into: bytearray | memoryview
) -> None:
    """Copy batches out of some messages, one behind the other.

    Args:
        pieces: What they are taken from; the numbers of messages; where in these to begin; and how many.
        into: Where to, of the size that they have together.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A message is not there, or holds no batch, or there are fewer numbers; or the size is another one.
    """
    found, size = [], 0
    for batches, numbers, start, count in pieces:
        if not isinstance(batches, EnvelopedBatches):
            raise TypeError(f"batches must be EnvelopedBatches, not {type(batches).__name__}")
        check_numbers("numbers", numbers)
        start = integer("start", start, 0, len(numbers))
        count = integer("count", count, 0, len(numbers) - start)
        for number in numbers[start : start + count]:
            begin, end = batches._place(number)
            found.append(batches._messages[begin:end])
            size += end - begin
    target = check_target(into, size)
    place = 0
    for batch in found:
        target[place : place + len(batch)] = batch
        place += len(batch)


def _fields(layout: EnvelopeLayout) -> Struct:
    """Mark, length, key and number of a message, and the base offset of the batch in it."""
    size, _, _, length, key, number = layout
    return Struct(f">I{length - 4}xI{key - length - 4}xI{number - key - 4}xQ{size - number - 8}xq")
