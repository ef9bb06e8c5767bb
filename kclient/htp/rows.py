"""Rows of a manager's key-value part, read page by page, and strictly: damage is one `ValueError`, and nothing else.

Python's own reader takes more than was ever written: a digit of a number that became an `e` makes it infinite, or a
fraction; and what it makes of deep nesting is no `ValueError`. Nor may a number be larger than what the protocol and
the database can carry: one row's damage would reach all whose answers tell of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from crc32c import crc32c

if TYPE_CHECKING:
    from kclient.htp.port import Manager, Versioned

GREATEST: Final = (1 << 62) - 1
"""No offset, size or time is as large, so sums of a few of them stay 64-bit numbers."""
GREATEST_EPOCH: Final = (1 << 31) - 2
"""Whoever leads under an epoch tells it in 32 bits, and the next one is greater."""
_FIRST_SURROGATE: Final = 0xD800
_LAST_SURROGATE: Final = 0xDFFF
_DIGITS: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_SHOWN: Final = 200
_PAGE: Final = 1000
"""Rows that are read at once: a database gives them in some milliseconds."""
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_CHECKSUM: Final = re.compile(rb"[0-9a-f]{8}")


class _Pages:
    """No generator, which whoever leaves off amid the pages, by a cancellation perhaps, would have to close."""

    def __init__(self, manager: Manager, prefix: str) -> None:
        self._manager = manager
        self._prefix = prefix
        self._after = ""
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Versioned]:
        if self._over:
            raise StopAsyncIteration
        page = await self._manager.scan(self._prefix, after=self._after, limit=_PAGE)
        self._over = len(page) < _PAGE
        if not page:
            raise StopAsyncIteration
        self._after = next(reversed(page))
        return page


def scan_pages(manager: Manager, prefix: str) -> AsyncIterator[dict[str, Versioned]]:
    """All rows whose keys begin with `prefix`, sorted, in pages; each is read at one moment, not all of them."""
    return _Pages(manager, prefix)


def prefix_end(prefix: str) -> str | None:
    """The least text that comes after all that begin with a prefix; None if none does."""
    prefix = prefix.rstrip("\U0010ffff")
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    if following == _FIRST_SURROGATE:  # which no key can have
        following = _LAST_SURROGATE + 1
    return prefix[:-1] + chr(following)


def parse_object(row: bytes) -> dict[str, Any]:
    """The JSON object of a row. Raises `ValueError` if it holds none, or a number that is not an integer."""
    value = _parse(row)
    if type(value) is not dict:
        raise ValueError(f"{row[:_SHOWN]!r} is not an object")
    return value


def parse_list(row: bytes, *lengths: int) -> list[Any]:
    """The JSON list of a row, with one of these numbers of values. Raises `ValueError` if it holds none."""
    value = _parse(row)
    if type(value) is not list or len(value) not in lengths:
        raise ValueError(f"{row[:_SHOWN]!r} is not a list of {' or '.join(map(str, lengths))} values")
    return value


def parse_number(row: bytes, least: int = 0, greatest: int = GREATEST) -> int:
    """The number that is all of a row, in digits. Raises `ValueError` if it is none within these bounds."""
    if not _DIGITS.fullmatch(row):
        raise ValueError(f"{row[:_SHOWN]!r} is not a number")
    return whole(int(row), least, greatest)


def whole(value: Any, least: int = 0, greatest: int = GREATEST) -> int:
    """A field that is an integer. Raises `ValueError` if it is none within these bounds."""
    if type(value) is not int or not least <= value <= greatest:
        raise ValueError(f"{str(value)[:_SHOWN]} is not an integer from {least} to {greatest}")
    return value


def check_opening(epoch: int, next_position: int) -> None:
    """Raise `ValueError` for what a topic cannot be opened with: a row that told it would be taken for damaged."""
    whole(epoch, 0, GREATEST_EPOCH)
    whole(next_position)


def string(value: Any) -> str:
    """A field that is text. Raises `ValueError` if it is none, or none that could be sent."""
    if type(value) is not str:
        raise ValueError(f"{str(value)[:_SHOWN]} is not a string")
    value.encode()  # an escape may stand for half a character
    return value


def optional_string(value: Any) -> str | None:
    """A field that is text or null. Raises `ValueError` if it is neither."""
    return None if value is None else string(value)


# What is in every row beside its values: a format number, and at the end a checksum


def dump(value: Any) -> bytes:
    """A value as JSON."""
    return _ENCODE(value).encode()


def seal(body: bytes) -> bytes:
    """A row: its body and the checksum."""
    return b"%b#%08x" % (body, crc32c(body))


def sealed_in_steps(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A row whose body is made piece by piece."""
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
        yield piece
    yield b"#%08x" % checksum


def unsealed(row: bytes) -> bytes:
    """The body of a row. Raises `ValueError` if it is not what the checksum belongs to.

    The first versions wrote none: such a row is its body.
    """
    if row[-9:-8] != b"#":
        return row
    body = row[:-9]
    if b"%08x" % crc32c(body) == row[-8:]:
        return body
    if _CHECKSUM.fullmatch(row, len(row) - 8):
        raise ValueError(f"{row[:_SHOWN]!r} is damaged: its checksum is that of something else")
    return row


def check_format(found: Any, newest: int) -> None:
    """Raise `ValueError` for a format that a newer version made."""
    if whole(found, 1) > newest:
        raise ValueError(f"it has format {found}, this version reads {newest}")


def object_of_format(body: bytes, newest: int) -> dict[str, Any]:
    """The JSON object of a row's body in one of the formats up to `newest`. Raises `ValueError` if it has none."""
    fields = parse_object(body)
    if "format" not in fields:
        raise ValueError(f"{body[:_SHOWN]!r} names no format")
    check_format(fields["format"], newest)
    return fields


def _parse(row: bytes) -> Any:
    try:
        return json.loads(row, parse_float=_no_integer, parse_constant=_no_integer)
    except RecursionError:
        raise ValueError(f"{row[:_SHOWN]!r} is nested too deeply") from None


def _no_integer(number: str) -> NoReturn:
    raise ValueError(f"{number[:_SHOWN]} is not an integer")
