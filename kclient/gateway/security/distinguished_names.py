"""Whose a certificate is: its subject, spelled as Java spells it, which is what Kafka's principals and ACLs say.

That is RFC 2253 in the way of `X500Principal.getName()`: the last part of the name first, `#` and `=` escaped wherever
they stand, line breaks as they are, types that the RFC does not name as numbers with their value in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_STRINGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: what Java shows as text. It takes the
bytes of all of them for UTF-8."""
_TYPES: Final = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
}
_ESCAPED: Final = str.maketrans({each: f"\\{each}" for each in ',=+<>#;"\\'} | {"\0": "\\00"})
_BLANKS: Final = " \r"
"""What is escaped at the ends."""
_MOST_LENGTH_BYTES: Final = 4
_LONG: Final = 0x80
_MULTI_BYTE_TAG: Final = 0x1F


class _Element(NamedTuple):
    """A value in DER."""

    tag: int
    whole: bytes
    """With its tag and length."""
    content: bytes


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate; empty where it has none.

    Args:
        certificate: As DER.

    Raises:
        ValueError: It is no certificate.
    """
    signed = _only(certificate, _SEQUENCE)
    fields = _elements(_expect(next(_elements(signed.content), None), _SEQUENCE).content)
    first = next(fields, None)
    if first is not None and first.tag == _VERSION:
        next(fields, None)  # the serial number
    for _ in range(3):  # algorithm, issuer, validity
        next(fields, None)
    return shown_name(_expect(next(fields, None), _SEQUENCE).whole)


def shown_name(name: bytes) -> str:
    """A distinguished name as text.

    Args:
        name: As DER.

    Raises:
        ValueError: It is no distinguished name.
    """
    parts = [_part(_expect(part, _SET)) for part in _elements(_only(name, _SEQUENCE).content)]
    return ",".join(reversed(parts))


def _part(part: _Element) -> str:
    """A part of the name, which may have several values."""
    return "+".join(_value(_expect(each, _SEQUENCE)) for each in _elements(part.content))


def _value(pair: _Element) -> str:
    elements = list(_elements(pair.content))
    if len(elements) != 2 or elements[0].tag != _OID:
        raise ValueError("a part of a name is a type and a value")
    number, value = elements
    kind = _TYPES.get(number.content)
    if kind is None or value.tag not in _STRINGS:
        return f"{kind or _dotted(number.content)}=#{value.whole.hex()}"
    return f"{kind}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    text = text.translate(_ESCAPED)
    start = len(text) - len(text.lstrip(_BLANKS))
    end = max(len(text.rstrip(_BLANKS)), start)
    before, after = ("".join(f"\\{each}" for each in blanks) for blanks in (text[:start], text[end:]))
    return f"{before}{text[start:end]}{after}"


def _dotted(content: bytes) -> str:
    """The number of a type: `1.2.840.113549.1.9.1`."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < _LONG:
            numbers.append(number)
            number = 0
    if not numbers or content[-1] >= _LONG:
        raise ValueError("a type is a number of whole parts")
    root = min(numbers[0] // 40, 2)
    return ".".join(map(str, (root, numbers[0] - root * 40, *numbers[1:])))


def _only(data: bytes, tag: int) -> _Element:
    """The one value that the bytes are."""
    element, *others = _elements(data)
    if others:
        raise ValueError("there is more than one value")
    return _expect(element, tag)


def _expect(element: _Element | None, tag: int) -> _Element:
    if element is None or element.tag != tag:
        raise ValueError(f"a value of type {tag:#x} is missing")
    return element


def _elements(data: bytes) -> Iterator[_Element]:
    """The values that stand one after the other."""
    position = 0
    while position < len(data):
        start = position
        if len(data) - position < 2 or data[position] & _MULTI_BYTE_TAG == _MULTI_BYTE_TAG:
            raise ValueError("a value is cut off, or has a type of several bytes")
        tag, length = data[position], data[position + 1]
        position += 2
        if length >= _LONG:
            size = length - _LONG
            if not 0 < size <= _MOST_LENGTH_BYTES:
                raise ValueError("a value has no length, or is too long")
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            raise ValueError("a value is cut off")
        yield _Element(tag, data[start : position + length], data[position : position + length])
        position += length
