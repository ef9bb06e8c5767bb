"""Reads Java's `.properties` format, as in the files that configure Kafka's own clients."""

from __future__ import annotations

from collections.abc import Iterator

from kclient.arguments import shown
from kclient.errors import ConfigError

__all__ = ["parse_properties"]

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    r"""The keys and values of a properties text, as `java.util.Properties.load` reads them.

    Comments begin with `#` or `!`; key and value are parted by `=`, `:` or blanks; a backslash at the end continues
    the line; `\t`, `\n`, `\r`, `\f` and `\uXXXX` are escapes, other characters after a backslash stand for
    themselves. Of a key that occurs twice the last value counts.

    Raises:
        TypeError: If it is not text.
        ConfigError: If a `\uXXXX` escape is malformed.
    """
    if not isinstance(text, str):
        raise TypeError(f"properties are text, not {shown(text)}")
    result: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = _key_end(line)
        start = end
        while start < len(line) and line[start] in _BLANKS:
            start += 1
        if start < len(line) and line[start] in "=:":
            start += 1
            while start < len(line) and line[start] in _BLANKS:
                start += 1
        result[_unescape(line[:end], number)] = _unescape(line[start:], number)
    return result


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, continued ones joined, each with the number of its first natural line."""
    lines = iter(enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1))
    for number, natural in lines:
        line = natural.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        parts = []
        while _continues(line):
            parts.append(line[:-1])
            line = next(lines, (0, ""))[1].lstrip(_BLANKS)
        yield number, "".join([*parts, line])


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
        elif line[position] in "=:" or line[position] in _BLANKS:
            return position
        else:
            position += 1
    return len(line)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    result: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            result.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            position += 4
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                # what is there may be of a password
                raise ConfigError(f"line {number} of the properties has a malformed \\u escape, which has four digits")
            result.append(chr(int(digits, 16)))
        else:
            result.append(_ESCAPES.get(escaped, escaped))
    # Java reads UTF-16: a character beyond the basic plane is written as two escapes
    return "".join(result).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
