"""Damages bytes in the ways that find bugs in readers: other lengths, flipped bits, missing and doubled pieces."""

from __future__ import annotations

from random import Random

INTERESTING = (0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
NUMBERS = (0, 1, -1, -2, 127, 128, 32767, -32768, 2**31 - 1, -(2**31))


def mutated(data: bytes, random: Random) -> bytes:
    """The data with one to three things wrong with it."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        random.choice(_MUTATIONS)(changed, random)
    return bytes(changed)


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice(INTERESTING)


def _number(data: bytearray, random: Random) -> None:
    size = random.choice((2, 4, 8))
    if len(data) >= size:
        start = random.randrange(len(data) - size + 1)
        mask = (1 << 8 * size) - 1
        data[start : start + size] = (random.choice(NUMBERS) & mask).to_bytes(size, "big")


def _cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def _remove(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data) + 1)
    del data[start : start + random.randint(1, 8)]


def _double(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data) + 1)
    data[start:start] = data[start : start + random.randint(1, 32)]


def _insert(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data) + 1)
    data[start:start] = bytes(random.choice(INTERESTING) for _ in range(random.randint(1, 8)))


_MUTATIONS = (_flip, _set, _number, _cut, _remove, _double, _insert)
