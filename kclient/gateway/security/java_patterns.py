"""Regular expressions and replacements as Java reads them, for Python's `re`.

The two agree on most of what people write. What Java reads otherwise is rewritten (`$` before a last line break, `.`
without four kinds of line breaks, named groups, quoting); what `re` does not have is refused, rather than read as
something else.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kclient.errors import ConfigError

_AT_END: Final = r"(?=\r\n\Z|(?<!\r)\n\Z|[\r\x85\u2028\u2029]\Z|\Z)"
_ANY: Final = r"[^\n\r\x85\u2028\u2029]"
_SAME: Final = frozenset("dDsSwWbBAtnrfa")
"""Letters behind a backslash that mean the same in both, without Unicode."""
IGNORES_CASE: Final = "(?i)"
"""What a pattern begins with that takes small letters for large ones: those of ASCII alone."""
_HEX: Final = {"x": 2, "u": 4}
_NAME: Final = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_BACK_NAME: Final = re.compile(r"\\k<([A-Za-z][A-Za-z0-9]*)>")
_PLAIN_GROUPS: Final = ("(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_REFERENCE: Final = re.compile(r"\$([0-9]+)")
_IN_CLASS: Final = ("&&", "||", "~~", "--", "[")


_LIKE_ASCII: Final = str.maketrans(dict.fromkeys("\u0131\u017f\u212a", "\ufffd"))
"""Where case does not matter RE2 takes these for letters of ASCII, and Java does not."""


class _Dialect(NamedTuple):
    """How others write what Java has."""

    anything: str
    """A `.` of Java's."""
    at_end: str
    """`$` and `\\Z`."""
    very_end: str
    """`\\z`."""
    code: str
    """`\\u` with its digits."""


_PYTHON: Final = _Dialect(_ANY, _AT_END, r"\Z", r"\u%s")
_RE2: Final = _Dialect(r"[^\n\r\x{85}\x{2028}\x{2029}]", "$", r"\z", r"\x{%s}")


def java_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of Java.

    Args:
        text: The pattern.

    Raises:
        ConfigError: It is none, or has what `re` does not.
    """
    start, text = _start(text)
    try:
        return re.compile(start + "".join(_Reader(text, _PYTHON).parts()), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"the pattern {_brief(text)} cannot be read: {error}") from error


def linear_text(text: str) -> str:
    """The pattern for `LinearPattern`, which takes what `java_pattern` takes: what is more would not be guarded by it.

    Args:
        text: A pattern that `java_pattern` has read.
    """
    start, text = _start(text)
    return start + "".join(_Reader(text, _RE2).parts())


def like_java(text: str) -> str:
    """A text as `LinearPattern` is to read it where case does not matter (`IGNORES_CASE`)."""
    return text.translate(_LIKE_ASCII)


def _start(text: str) -> tuple[str, str]:
    """The flag that a pattern begins with, and the rest."""
    return (text[:4], text[4:]) if text.startswith(IGNORES_CASE) else ("", text)


class _Reader:
    """Reads a pattern from the left.

    Args:
        text: The pattern.
        dialect: What it becomes.
    """

    def __init__(self, text: str, dialect: _Dialect) -> None:
        self._text = text
        self._dialect = dialect
        self._at = 0

    def parts(self) -> list[str]:
        found: list[str] = []
        while self._at < len(self._text):
            found.append(self._next())
        return found

    def _next(self) -> str:
        here = self._text[self._at]
        if here == "\\":
            return self._escape()
        if here == "[":
            return self._class()
        if self._text.startswith("(?", self._at):
            return self._group()
        self._at += 1
        return {".": self._dialect.anything, "$": self._dialect.at_end}.get(here, here)

    def _group(self) -> str:
        named = _NAME.match(self._text, self._at)
        if named is not None:
            self._at = named.end()
            return f"(?P<{named[1]}>"
        for plain in _PLAIN_GROUPS:
            if self._text.startswith(plain, self._at):
                self._at += len(plain)
                return plain
        raise self._refused("(?" + self._text[self._at + 2 : self._at + 4])

    def _class(self) -> str:
        start = self._at
        self._at += 2 if self._text.startswith("[^", start) else 1
        found = self._text[start : self._at]
        if self._text.startswith("]", self._at):
            raise self._refused(found + "]")
        while not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise self._refused("[")
            for other in _IN_CLASS:
                if self._text.startswith(other, self._at):
                    raise self._refused(f"{other} between brackets")
            if self._text[self._at] == "\\":
                found += self._escape(in_class=True)
            else:
                found += self._text[self._at]
                self._at += 1
        self._at += 1
        return found + "]"

    def _escape(self, *, in_class: bool = False) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        here = self._text[self._at : self._at + 2]
        if letter == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at + 2 : end if end >= 0 else len(self._text)]
            self._at = end + 2 if end >= 0 else len(self._text)
            return re.escape(quoted)
        if not in_class and (named := _BACK_NAME.match(self._text, self._at)) is not None:
            self._at = named.end()
            return f"(?P={named[1]})"
        if letter in _HEX:
            digits = self._text[self._at + 2 : self._at + 2 + _HEX[letter]]
            self._at += 2 + _HEX[letter]
            return self._dialect.code % digits if letter == "u" else f"\\x{digits}"  # wrong ones are refused by `re`
        self._at += 2
        if not in_class and letter in ("z", "Z"):
            return self._dialect.very_end if letter == "z" else self._dialect.at_end
        if not in_class and letter in "123456789" and letter:
            if self._text[self._at : self._at + 1].isdigit():
                raise self._refused(f"{here} before a digit")
            return here
        if letter and (
            not (letter.isascii() and letter.isalnum()) or letter in (_SAME - set("bBA" if in_class else ""))
        ):
            return here
        raise self._refused(here)

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(f"the pattern {_brief(self._text)} has {what}, which cannot be read here: say it otherwise")


class JavaReplacement:
    """What `String.replaceAll` of Java puts in place of a match.

    Args:
        text: The replacement: `$1` and `${name}` for groups, a backslash before what stands for itself.
        pattern: What it goes with.

    Raises:
        ConfigError: It names a group that the pattern does not have, or ends within something.
    """

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._text = text
        self._pattern = pattern
        self._parts: list[str | int] = []
        """Texts, and the numbers of groups."""
        at = 0
        while at < len(text):
            at = self._read(at)

    def expand(self, match: re.Match[str]) -> str:
        """The text in place of a match; a group that has taken no part is empty."""
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self._parts)

    def _read(self, at: int) -> int:
        """Read one thing; returns where the next one begins."""
        text = self._text
        if text[at] == "\\":
            if at + 1 == len(text):
                raise self._wrong("ends with a backslash")
            self._parts.append(text[at + 1])
            return at + 2
        if text[at] != "$":
            self._parts.append(text[at])
            return at + 1
        if text.startswith("${", at):
            name, closed, _ = text[at + 2 :].partition("}")
            if not closed or name not in self._pattern.groupindex:
                raise self._wrong(f"names the group {_brief(name)}, which the pattern does not have")
            self._parts.append(self._pattern.groupindex[name])
            return at + 3 + len(name)
        digits = re.match("[0-9]+", text[at + 1 :])
        if digits is None:
            raise self._wrong("has a $ without a group behind it; \\$ is the character")
        number, taken = int(digits[0][0]), 1
        if number > self._pattern.groups:
            raise self._wrong(f"names the group {number}, and the pattern has {self._pattern.groups}")
        while taken < len(digits[0]) and number * 10 + int(digits[0][taken]) <= self._pattern.groups:
            number = number * 10 + int(digits[0][taken])
            taken += 1
        self._parts.append(number)
        return at + 1 + taken

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"the replacement {_brief(self._text)} {what}")


def without_groups_beyond(text: str, groups: int) -> str:
    """A replacement of Kafka's rules, where groups that the pattern does not have stand for themselves: `$4` is `\\$4`.

    Kafka looks for them in the text as it was and puts the backslashes into what it has become, so that a second one
    goes to a place too far left; who relies on that finds it here.

    Args:
        text: The replacement.
        groups: So many has the pattern.
    """
    if groups == 0:
        return text
    found = text
    for match in _REFERENCE.finditer(text):
        digits = match[1]
        if digits.startswith("0"):
            continue
        while int(digits) > groups and len(digits) > 1:
            digits = digits[:-1]
        if int(digits) > groups:
            at = match.start()
            found = f"{found[:at]}\\{found[at:]}"
    return found


def _brief(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 100 else f"{shown[:100]}..."
