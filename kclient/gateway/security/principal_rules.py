"""`ssl.principal.mapping.rules`: how the subject of a client's certificate becomes the name of a user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kclient.arguments import shown
from kclient.errors import ConfigError, InvalidRegularExpressionError
from kclient.gateway.patterns import LinearPattern
from kclient.gateway.security.java_patterns import (
    IGNORES_CASE,
    JavaReplacement,
    java_pattern,
    like_java,
    linear_text,
    without_groups_beyond,
)

RULES: Final = "ssl.principal.mapping.rules"
DEFAULT: Final = "DEFAULT"

_FIELD: Final = r"(?:\\.|[^\\/])*"
"""Up to the next slash that has no backslash before it."""
_RULE: Final = rf"RULE:(?P<pattern>{_FIELD})/(?P<replacement>{_FIELD})/(?P<letters>[LU]?)"
_PIECE: Final = re.compile(rf"\s*(?P<piece>{DEFAULT}|{_RULE}.*?|.*?)\s*(?:,\s*|\Z)", re.ASCII)
"""What stands between two commas; a rule may have some within its fields."""
_WHOLE: Final = re.compile(_RULE, re.ASCII)


@dataclass(frozen=True, slots=True)
class _Guard:
    """A pattern matched in time that is linear in the name.

    Names that do not match can take `re` minutes, in which nothing else runs: with `CN=(.*?),OU=(.*?),O=(.*?)...` the
    fifth power of their length, and who asks for a certificate has a say in its subject.
    """

    whole: LinearPattern
    later: LinearPattern
    """Whether it matches anywhere behind the first character."""
    folded: bool

    def may_match(self, name: str) -> bool:
        """Whether it matches all of the name."""
        return self.whole.matches(self._read(name))

    def may_follow(self, name: str, at: int) -> bool:
        """Whether there is a match that begins there or later."""
        return at == 0 or self.later.matches(self._read(name[at - 1 :]))

    def _read(self, name: str) -> str:
        return like_java(name) if self.folded else name


@dataclass(frozen=True, slots=True)
class _Rule:
    """`RULE:pattern/replacement/` with L or U."""

    pattern: re.Pattern[str]
    replacement: JavaReplacement
    letters: str
    guard: _Guard | None
    """None where the pattern has what RE2 cannot read."""

    def apply(self, name: str) -> str | None:
        """The user; None where the rule says nothing of the name."""
        if self.guard is not None and not self.guard.may_match(name):
            return None
        if self.pattern.fullmatch(name) is None:
            return None
        user = self._replaced(name)
        return user.lower() if self.letters == "L" else user.upper() if self.letters == "U" else user

    def _replaced(self, name: str) -> str:
        """As in Kafka: the whole name has to match, and then every match in it is replaced, of which .* has two."""
        parts: list[str] = []
        copied = at = 0
        while at <= len(name) and (self.guard is None or self.guard.may_follow(name, at)):
            match = self.pattern.search(name, at)
            if match is None:
                break
            parts += name[copied : match.start()], self.replacement.expand(match)
            copied = match.end()
            at = copied if copied > match.start() else copied + 1
        return "".join((*parts, name[copied:]))


class PrincipalRules:
    """The rules of a listener, in order.

    Args:
        text: As in Kafka: `RULE:pattern/replacement/[LU]` and `DEFAULT`, with commas between them.

    Raises:
        ConfigError: They make no sense, or there is none.
    """

    def __init__(self, text: str) -> None:
        pieces = _pieces(text.strip())
        if not pieces:
            raise ConfigError(f"{RULES} is empty: nobody with a certificate could come in; {DEFAULT} takes all names")
        self._rules = [_rule(piece) for piece in pieces]

    def user_of(self, name: str) -> str | None:
        """The user of a certificate; None where no rule speaks of it.

        Args:
            name: Its subject, as `subject_of` spells it.
        """
        for rule in self._rules:
            user = name if rule is None else rule.apply(name)
            if user is not None:
                return user
        return None


def _pieces(text: str) -> list[str]:
    """The rules; empty ones are left out."""
    found, at = [], 0
    for match in _PIECE.finditer(text):
        if match.start() != at:
            raise ConfigError(f"{RULES}: {shown(text[at:])} is no rule, or has no comma behind it")
        at = match.end()
        if match["piece"]:
            found.append(match["piece"])
    return found


def _rule(piece: str) -> _Rule | None:
    """A rule; None for the one that takes names as they are."""
    if piece == DEFAULT:
        return None
    found = _WHOLE.fullmatch(piece)
    if found is None:
        raise ConfigError(
            f"{RULES}: {shown(piece)} is no rule; one is {DEFAULT} or RULE:pattern/replacement/ with L or U behind it"
        )
    try:
        pattern = java_pattern(found["pattern"])
        replacement = JavaReplacement(without_groups_beyond(found["replacement"], pattern.groups), pattern)
    except ConfigError as error:
        raise ConfigError(f"{RULES}: {error}") from error
    return _Rule(pattern, replacement, found["letters"], _guard(found["pattern"]))


def _guard(text: str) -> _Guard | None:
    linear = linear_text(text)
    try:
        return _Guard(
            LinearPattern(linear), LinearPattern(f"(?s:.+)(?:{linear})(?s:.*)"), text.startswith(IGNORES_CASE)
        )
    except InvalidRegularExpressionError:  # RE2 does not have all that Java has
        return None
