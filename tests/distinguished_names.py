"""Distinguished names as DER, of the kinds that certificates have and of some that they should not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

UTF8, NUMERIC, PRINTABLE, T61, IA5, VISIBLE = 0x0C, 0x12, 0x13, 0x14, 0x16, 0x1A
GENERAL, UNIVERSAL, BMP, OCTETS, NUMBER = 0x1B, 0x1C, 0x1E, 0x04, 0x02
TEXTS = (UTF8, PRINTABLE, T61, IA5, GENERAL, BMP, UNIVERSAL, NUMERIC, VISIBLE)

CN, COUNTRY, TOWN, ST, STREET, ORG, OU = (f"2.5.4.{number}" for number in (3, 6, 7, 8, 9, 10, 11))
UID, DC = "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"
EMAIL, TITLE, SERIAL = "1.2.840.113549.1.9.1", "2.5.4.12", "2.5.4.5"
ODD = ("2.999.3", "1.3.6.1.4.1.311.20.2.3", "0.0", "2.39.0", "1.2.3.4.5.6.7.8.9.10.11.12.13")
TYPES = (CN, COUNTRY, TOWN, ST, STREET, ORG, OU, UID, DC, EMAIL, TITLE, SERIAL, *ODD)


@dataclass(frozen=True)
class Value:
    """One value of a part of a name."""

    kind: str
    """The number of its type."""
    text: bytes
    tag: int = UTF8


def der(tag: int, content: bytes) -> bytes:
    """A value in DER."""
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 + len(length)]) + length + content


def name(*parts: Value | Sequence[Value]) -> bytes:
    """A name; a part is one value or several."""
    found = b""
    for part in parts:
        values = [part] if isinstance(part, Value) else part
        found += der(0x31, b"".join(der(0x30, _oid(each.kind) + der(each.tag, each.text)) for each in values))
    return der(0x30, found)


def _oid(dotted: str) -> bytes:
    first, second, *others = map(int, dotted.split("."))
    content = b""
    for number in (first * 40 + second, *others):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(number & 0x7F | 0x80)
        content += bytes(reversed(digits))
    return der(0x06, content)


SPELLED = {
    name(Value(CN, b"alice")): "CN=alice",
    name(
        Value(COUNTRY, b"DE", PRINTABLE), Value(ORG, b"Org"), Value(OU, b"Unit"), Value(CN, b"alice")
    ): "CN=alice,OU=Unit,O=Org,C=DE",
    name(): "",
    name(Value(CN, "Ümlaut Ⅸ 😀".encode())): "CN=Ümlaut Ⅸ 😀",
    name(Value(CN, b'a,b+c"d\\e<f>g;h#i=j')): r"CN=a\,b\+c\"d\\e\<f\>g\;h\#i\=j",
    name(Value(CN, b" lead and trail ")): "CN=\\ lead and trail\\ ",
    name(Value(CN, b"   ")): "CN=\\ \\ \\ ",
    name(Value(CN, b"\ra\r")): "CN=\\\ra\\\r",
    name(Value(CN, b"\ta\n")): "CN=\ta\n",
    name(Value(CN, b"line\nbreak")): "CN=line\nbreak",
    name(Value(CN, b"nul\0nul")): "CN=nul\\00nul",
    name(Value(CN, b"")): "CN=",
    name(Value(CN, b"not\xffutf8")): "CN=not�utf8",
    name((Value(CN, b"alice"), Value(UID, b"7")), Value(ORG, b"Org")): "O=Org,CN=alice+UID=7",
    name((Value(UID, b"7"), Value(CN, b"alice"))): "UID=7+CN=alice",
    name(Value(CN, b"one"), Value(CN, b"two")): "CN=two,CN=one",
    name(Value(DC, b"org", IA5), Value(DC, b"example", IA5), Value(CN, b"alice")): "CN=alice,DC=example,DC=org",
    name(Value(EMAIL, b"a@b", IA5), Value(CN, b"alice")): "CN=alice,1.2.840.113549.1.9.1=#1603614062",
    name(Value(TITLE, b"Dr")): "2.5.4.12=#0c024472",
    name(Value(CN, b"alice", OCTETS)): "CN=#0405616c696365",
    name(Value(CN, b"12", NUMERIC)): "CN=#12023132",
    name(Value(ST, b"here"), Value(TOWN, b"there"), Value(STREET, b"1")): "STREET=1,L=there,ST=here",
    name(Value("2.999.3", b"x")): "2.999.3=#0c0178",
    name(Value(CN, "al".encode("utf-16-be"), BMP)): "CN=\\00a\\00l",
}
"""Names, and how Java spells them."""

_PIECES = (
    " ", "\r", "\n", "\t", "\0",
    ",", "+", '"', "\\", "<", ">", ";", "#", "=", "a", "B", "0", "'", "(", ":", "ü", "Ⅸ", "😀",
    "\x7f", "\u2028", "\u202e", "\ufeff",
)  # fmt: skip


def random_names(seed: int, count: int) -> Iterator[bytes]:
    """Names of all kinds of values and characters."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 4)):
            values = [_random_value(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
            parts.append(values)
        yield name(*parts)


def _random_value(rng: random.Random) -> Value:
    tag = rng.choice((*TEXTS, *TEXTS, UTF8, UTF8, UTF8, OCTETS, NUMBER))
    kind = rng.choice(TYPES)
    text = "".join(rng.choice(_PIECES) for _ in range(rng.randint(0, 8)))
    if tag == NUMBER:
        return Value(kind, bytes([rng.randint(0, 127)]), tag)
    if tag == BMP:
        return Value(kind, text.replace("😀", "a").encode("utf-16-be"), tag)
    if tag == UNIVERSAL:
        return Value(kind, text.encode("utf-32-be"), tag)
    if tag in (PRINTABLE, NUMERIC, IA5, VISIBLE, T61, GENERAL):
        return Value(kind, text.encode("ascii", "ignore"), tag)
    return Value(kind, text.encode(), tag)
