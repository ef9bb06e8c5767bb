"""Regular expressions of clients: any text is one or is refused, and matches the same whatever was matched before."""

from __future__ import annotations

from kclient.errors import InvalidRegularExpressionError
from kclient.gateway.patterns import LinearPattern
from tests.re2_cases import MATCHED, WRONG

TEXTS = sorted({text for _, text, _ in MATCHED} | {"", "aB-1\n"})


def check(data: bytes) -> None:
    """The bytes are the pattern; what is not UTF-8 in it is replaced."""
    text = data.decode("utf-8", "replace")
    try:
        pattern = LinearPattern(text)
    except InvalidRegularExpressionError:
        return
    found = [pattern.matches(each) for each in TEXTS]
    assert [pattern.matches(each) for each in reversed(TEXTS)] == found[::-1]
    assert LinearPattern(text).matches(TEXTS[-1]) is found[-1]


def seeds() -> list[bytes]:
    """Those whose meaning is known."""
    return [each.encode() for each in [*(pattern for pattern, _, _ in MATCHED), *WRONG]]
