"""Which characters a place of a pattern takes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

Range = tuple[int, int]
"""Code points, both included."""
LAST: Final = 0x10FFFF

_ALNUM: Final = ((48, 57), (65, 90), (97, 122))
PERL: Final[dict[str, tuple[Range, ...]]] = {
    "d": ((48, 57),),
    "s": ((9, 10), (12, 13), (32, 32)),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
}
"""Of ASCII alone, as in RE2; the capital letter is what is not in it."""
POSIX: Final[dict[str, tuple[Range, ...]]] = {
    "alnum": _ALNUM,
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": ((48, 57),),
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": PERL["w"],
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
CATEGORIES: Final = frozenset(
    {
        "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No",
        "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
    }
)  # fmt: skip
"""Of Unicode, as `\\p{Lu}` names them."""


def inverted(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """All other characters."""
    found, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    if begin <= LAST:
        found.append((begin, LAST))
    return tuple(found)


def variants(character: str) -> frozenset[str]:
    """What a character is the same as where case does not matter."""
    lower, upper = character.lower(), character.upper()
    return frozenset(each for each in (character, lower, upper, lower.upper(), upper.lower()) if len(each) == 1)


@dataclass(frozen=True, slots=True)
class CharSet:
    """Some characters.

    Args:
        ranges: Those in it.
        categories: Unicode's, whose characters are in it; with False those of all others are.
        negated: It is all others.
        folded: Case does not matter.
    """

    ranges: tuple[Range, ...] = ()
    categories: tuple[tuple[str, bool], ...] = ()
    negated: bool = False
    folded: bool = False
    _known: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    def __contains__(self, character: str) -> bool:
        found = self._known.get(character)
        if found is None:
            some = variants(character) if self.folded else (character,)
            found = any(map(self._has, some)) is not self.negated
            if len(self._known) < 1000:
                self._known[character] = found
        return found

    def _has(self, character: str) -> bool:
        code = ord(character)
        if any(low <= code <= high for low, high in self.ranges):
            return True
        if not self.categories:
            return False
        category = unicodedata.category(character)
        return any(category.startswith(name) is wanted for name, wanted in self.categories)

    def joined(self, other: CharSet) -> CharSet:
        """With the characters of another one, which is not negated."""
        return replace(self, ranges=self.ranges + other.ranges, categories=self.categories + other.categories)
