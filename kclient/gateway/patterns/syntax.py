"""Reads the syntax of RE2: what it has beside Python's, and what it has not, is an error here as there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from kclient.errors import InvalidRegularExpressionError
from kclient.gateway.patterns.charsets import CATEGORIES, LAST, PERL, POSIX, CharSet, Range, inverted, variants

LONGEST: Final = 4096
"""Characters of a pattern, and states that it becomes once what it repeats is written out."""
_DEEPEST: Final = 100
"""Groups in one another."""
_MOST_TIMES: Final = 1000
"""The greatest number of repetitions, as in RE2."""
_ENDLESS: Final = -1
_ESCAPED: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_OCTAL: Final = frozenset("01234567")
_FLAGS: Final = frozenset("imsU")


class PatternPlace(Enum):
    """What has to be so where the text is."""

    BEGINNING = "beginning"
    END = "end"
    LINE_BEGINS = "line begins"
    LINE_ENDS = "line ends"
    WORD_EDGE = "word edge"
    NO_WORD_EDGE = "no word edge"


class Sequence(NamedTuple):
    """One after the other."""

    parts: tuple[Node, ...]


class PatternChoice(NamedTuple):
    """One of several."""

    parts: tuple[Node, ...]


class Repeat(NamedTuple):
    """The same several times."""

    part: Node
    least: int
    most: int
    """-1 for as often as it comes."""


Node = CharSet | PatternPlace | Sequence | PatternChoice | Repeat


@dataclass(frozen=True, slots=True)
class _Flags:
    folded: bool = False
    lines: bool = False
    dot_all: bool = False

    def set(self, letter: str, on: bool) -> _Flags:
        if letter == "i":
            return replace(self, folded=on)
        if letter == "m":
            return replace(self, lines=on)
        return replace(self, dot_all=on) if letter == "s" else self  # U: which of several matches, does not matter


def parse(pattern: str) -> Node:
    """The tree of a pattern.

    Raises:
        InvalidRegularExpressionError: It is none, or too long.
    """
    if len(pattern) > LONGEST:
        raise InvalidRegularExpressionError(
            f"the pattern has {len(pattern)} characters, and may have {LONGEST}: shorten it"
        )
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._flags = _Flags()
        self._names: set[str] = set()

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            self._wrong("there is no group that this ) ends")
        return node

    def _wrong(self, why: str, at: int | None = None) -> NoReturn:
        place = self._at if at is None else at
        raise InvalidRegularExpressionError(
            f"the pattern {self._text[:100]!r} is none of RE2, at character {place + 1}: {why}"
        )

    def _looking_at(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _took(self, text: str) -> bool:
        found = self._looking_at(text)
        if found:
            self._at += len(text)
        return found

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            self._wrong(missing)
        self._at += 1
        return self._text[self._at - 1]

    # Structure

    def _choice(self) -> Node:
        before, parts = self._flags, [self._sequence()]
        while self._took("|"):
            parts.append(self._sequence())
        self._flags = before
        return parts[0] if len(parts) == 1 else PatternChoice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._took("\\Q"):
                end = self._text.find("\\E", self._at)
                end = len(self._text) if end < 0 else end
                parts += [self._literal(each) for each in self._text[self._at : end]]
                self._at = min(end + 2, len(self._text))
                if parts and self._at > end:
                    parts[-1] = self._repeated(parts[-1])
                continue
            begin = self._at
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
            elif self._at < len(self._text) and self._repetition() is not None:  # flags only
                self._wrong("there is nothing to repeat", begin)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        begin = self._at
        found = self._repetition()
        if found is None:
            return atom
        least, most = found
        if max(least, most) > _MOST_TIMES:
            self._wrong(f"what is repeated may be so {_MOST_TIMES} times", begin)
        if most != _ENDLESS and most < least:
            self._wrong("the greatest number of repetitions is below the least", begin)
        self._took("?")  # which of several matches does not matter
        begin = self._at
        if self._repetition() is not None:
            self._wrong("a repetition is repeated: put what is repeated in a group", begin)
        return Repeat(atom, least, most)

    def _repetition(self) -> tuple[int, int] | None:
        """How often what is before this is repeated; None if nothing is said of that."""
        for sign, times in (("*", (0, _ENDLESS)), ("+", (1, _ENDLESS)), ("?", (0, 1))):
            if self._took(sign):
                return times
        if not self._looking_at("{"):
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not _is_number(least) or (most and not _is_number(most)):
            return None  # it stands for itself
        self._at = end + 1
        return int(least), int(most) if most else _ENDLESS if comma else int(least)

    def _atom(self) -> Node | None:
        begin = self._at
        character = self._next("")
        if character == "(":
            return self._group(begin)
        if character == "[":
            return self._set(begin)
        if character == ".":
            return CharSet(negated=True) if self._flags.dot_all else CharSet(((10, 10),), negated=True)
        if character == "^":
            return PatternPlace.LINE_BEGINS if self._flags.lines else PatternPlace.BEGINNING
        if character == "$":
            return PatternPlace.LINE_ENDS if self._flags.lines else PatternPlace.END
        if character in "*+?":
            self._wrong("there is nothing to repeat", begin)
        if character == "\\":
            return self._escape(begin)
        return self._literal(character)

    def _literal(self, character: str) -> CharSet:
        if self._flags.folded:
            return CharSet(tuple((ord(each), ord(each)) for each in sorted(variants(character))), folded=True)
        return CharSet(((ord(character), ord(character)),))

    def _group(self, begin: int) -> Node | None:
        before = self._flags
        if self._took("?"):
            named = self._took("P<") or (self._looking_at("<") and not self._looking_at("<=") and self._took("<"))
            if named and not self._looking_at("!"):
                self._name(begin)
            elif not self._set_flags(begin):
                return None
        self._depth += 1
        if self._depth > _DEEPEST:
            self._wrong(f"more than {_DEEPEST} groups are in one another", begin)
        node = self._choice()
        if not self._took(")"):
            self._wrong("there is no ) to this group", begin)
        self._depth -= 1
        self._flags = before
        return node

    def _name(self, begin: int) -> None:
        end = self._text.find(">", self._at)
        name = self._text[self._at : end] if end > 0 else ""
        if not name or not all(each.isascii() and (each.isalnum() or each == "_") for each in name):
            self._wrong("this is not a valid group name", begin)
        if name in self._names:
            self._wrong(f"two groups are called {name}", begin)
        self._names.add(name)
        self._at = end + 1

    def _set_flags(self, begin: int) -> bool:
        """Take over flags; whether a group follows for which alone they are."""
        on, seen = True, False
        flags = self._flags
        while True:
            letter = self._next("there is no ) to this group")
            if letter in _FLAGS:
                flags, seen = flags.set(letter, on), True
            elif letter == "-" and on:
                on, seen = False, False
            elif letter in ":)" and (on or seen):
                if letter == ")" and not seen:
                    self._wrong("there is nothing to repeat", begin)
                self._flags = flags
                return letter == ":"
            else:
                self._wrong("RE2 has no such group: it looks neither ahead nor back", begin)

    # Characters

    def _escape(self, begin: int) -> Node:
        at = self._at
        letter = self._next("nothing follows the \\")
        places = {
            "A": PatternPlace.BEGINNING,
            "z": PatternPlace.END,
            "b": PatternPlace.WORD_EDGE,
            "B": PatternPlace.NO_WORD_EDGE,
        }
        if letter in places:
            return places[letter]
        self._at = at
        found = self._class_escape(begin)
        return found if found is not None else self._literal(self._character(begin))

    def _class_escape(self, begin: int) -> CharSet | None:
        """The characters that a letter after a \\ stands for; None if it stands for one alone."""
        letter = self._text[self._at] if self._at < len(self._text) else ""
        if letter.lower() in PERL and letter:
            self._at += 1
            ranges = PERL[letter.lower()]
            return CharSet(ranges if letter.islower() else inverted(ranges), folded=False)
        if letter not in ("p", "P"):
            return None
        self._at += 1
        name = self._next("a category follows \\p, as in \\pL or \\p{Lu}")
        if name == "{":
            end = self._text.find("}", self._at)
            name, self._at = (self._text[self._at : end], end + 1) if end > 0 else ("", self._at)
        wanted = letter == "p"
        if name.startswith("^"):
            name, wanted = name[1:], not wanted
        if name == "Any":
            return CharSet(((0, LAST),) if wanted else ())
        if name not in CATEGORIES:
            self._wrong(f"{name[:30]!r} is not a known category of characters (scripts are not supported)", begin)
        return CharSet(categories=((name, wanted),), folded=self._flags.folded)

    def _character(self, begin: int) -> str:
        """The one that follows a \\."""
        letter = self._next("nothing follows the \\")
        if letter in _ESCAPED:
            return _ESCAPED[letter]
        following = self._text[self._at : self._at + 1]
        if letter in _OCTAL and (letter == "0" or (following in _OCTAL and following)):
            digits = letter
            while len(digits) < 3 and self._at < len(self._text) and self._text[self._at] in _OCTAL:
                digits += self._next("")
            return chr(int(digits, 8))
        if letter == "x":
            return self._hexadecimal(begin)
        if not letter.isascii() or letter.isalnum():
            self._wrong("RE2 has no such escape" + (": it refers back to no group" if letter.isdigit() else ""), begin)
        return letter

    def _hexadecimal(self, begin: int) -> str:
        if self._took("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end > 0 else ""
            self._at = end + 1
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            if len(digits) < 2:
                digits = ""
        if not digits or len(digits) > 8 or not _HEX.issuperset(digits) or int(digits, 16) > LAST:
            self._wrong("this is not a character", begin)
        return chr(int(digits, 16))

    def _set(self, begin: int) -> CharSet:
        found = CharSet(negated=self._took("^"), folded=self._flags.folded)
        first = True
        while first or not self._looking_at("]"):
            first = False
            if self._at >= len(self._text):
                self._wrong("there is no ] to this set", begin)
            if self._looking_at("[:") and (posix := self._posix()) is not None:
                found = found.joined(posix)
                continue
            at = self._at
            if self._took("\\"):
                known = self._class_escape(at)
                if known is not None:
                    found = found.joined(known)
                    continue
                self._at = at
            low = self._member()
            high = low
            if self._looking_at("-") and not self._looking_at("-]"):
                self._at += 1
                high = self._member()
                if high < low:
                    self._wrong("the range ends before it begins", at)
            ranges: tuple[Range, ...] = ((ord(low), ord(high)),)
            if self._flags.folded and low == high:
                ranges = tuple((ord(each), ord(each)) for each in sorted(variants(low)))
            found = found.joined(CharSet(ranges))
        self._at += 1
        return found

    def _member(self) -> str:
        begin = self._at
        character = self._next("there is no ] to this set")
        return self._character(begin) if character == "\\" else character

    def _posix(self) -> CharSet | None:
        end = self._text.find(":]", self._at + 2)
        if end < 0:
            return None
        name = self._text[self._at + 2 : end]
        negated = name.startswith("^")
        ranges = POSIX.get(name[negated:])
        if ranges is None:
            self._wrong(f"{name[:30]!r} is not a class of characters")
        self._at = end + 2
        return CharSet(inverted(ranges) if negated else ranges)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9
