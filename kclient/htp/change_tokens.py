"""Where somebody is who follows changes, as a token, and whether a log of changes still reaches back to there.

For backends whose commits have numbers. What a backend keeps of the past, it keeps from some revision on (its floor),
and of a prefix from the revision on at which somebody began to follow it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kclient.arguments import shown
from kclient.htp.errors import HtpError, TokenTooOldError
from kclient.htp.rows import parse_number

CHANGES_KEPT: Final = 10_000
"""So many changes are kept, at least, for those who follow them; whoever is further behind reads the values again."""
MOST_FOLLOWED: Final = 100
"""Prefixes that are followed, at most: each commit looks whether it writes below one of them."""


class ChangePlace(NamedTuple):
    """Everything up to here has been told."""

    history: int
    """Of which log of changes: a store that was made anew has another one."""
    revision: int
    """Of the last commit that was told, or of which nothing was to be told."""
    key: str | None = None
    """The last key of that commit that was told; None for all."""

    @property
    def whole(self) -> int:
        """The last revision of which everything has been told."""
        return self.revision if self.key is None else self.revision - 1

    @property
    def token(self) -> str:
        """As a text."""
        return f"{self.history:x}.{self.revision}" + ("" if self.key is None else f".{self.key}")


def parse_token(token: str) -> ChangePlace:
    """The place that a token stands for. Raises `ValueError` for a text that is none."""
    history, *rest = token.split(".", 2)
    try:
        return ChangePlace(int(history, 16), parse_number(rest[0].encode()), rest[1] if len(rest) > 1 else None)
    except (ValueError, IndexError):
        raise ValueError(f"{shown(token)} is not a token of a change log") from None


def check_prefixes(prefixes: Iterable[str]) -> tuple[str, ...]:
    """The prefixes, each once. Raises `TypeError` for one text in the place of several, `ValueError` for none."""
    if isinstance(prefixes, str):
        raise TypeError(f"prefixes are several texts, not {shown(prefixes)}")
    found = tuple(dict.fromkeys(prefixes))
    if not found:
        raise ValueError("there is no prefix to follow")
    return found


def check_limit(limit: int) -> int:
    """How many changes a page may hold. Raises `ValueError` for less than one: nothing would ever be told."""
    if limit < 1:
        raise ValueError(f"a page of changes holds at least one, not {limit}")
    return limit


def touched_by(keys: Sequence[str], prefixes: tuple[str, ...]) -> bool:
    """Whether one of the keys is below one of the prefixes."""
    return any(key.startswith(prefixes) for key in keys)


def to_be_followed(prefixes: Iterable[str], followed: Mapping[str, int]) -> list[str]:
    """Those of the prefixes that nobody follows yet, nor a shorter one.

    Raises:
        HtpError: If they would be too many.
    """
    new = [prefix for prefix in prefixes if _since(prefix, followed) is None]
    if new and len(followed) + len(new) > MOST_FOLLOWED:
        raise HtpError(f"{len(followed)} prefixes are followed; with {', '.join(map(shown, new))} they are too many")
    return new


def check_place(
    place: ChangePlace, prefixes: Iterable[str], history: int, revision: int, floor: int, followed: Mapping[str, int]
) -> None:
    """Raise `TokenTooOldError` unless everything is known that has changed below the prefixes since a place.

    Args:
        place: Where somebody is.
        prefixes: What is followed from there.
        history: Of the log of changes.
        revision: Of the last commit.
        floor: Of the last commit that the log may have forgotten.
        followed: From which revision on changes below a prefix are known.
    """
    if place.history != history or place.whole > revision:
        raise TokenTooOldError("the token is another store's, or this one was replaced since: scan again")
    if place.whole < floor:
        raise TokenTooOldError(
            f"the token is too old: it stands for revision {place.whole}, and of changes up to {floor} some are "
            "forgotten: scan again"
        )
    for prefix in prefixes:
        since = _since(prefix, followed)
        if since is None or place.whole < since:
            raise TokenTooOldError(f"the token is too old: nobody followed {shown(prefix)} at that time: scan again")


def _since(prefix: str, followed: Mapping[str, int]) -> int | None:
    """From which revision on changes below a prefix are known."""
    return min((since for known, since in followed.items() if prefix.startswith(known)), default=None)


def below(keys: Iterable[str], prefixes: Iterable[str]) -> list[str]:
    """Those of some keys that begin with one of the prefixes, in order. Of those that do not, none is looked at."""
    ordered = sorted(keys)
    found = set[str]()
    for prefix in prefixes:
        for at in range(bisect_left(ordered, prefix), len(ordered)):
            if not ordered[at].startswith(prefix):
                break
            found.add(ordered[at])
    return sorted(found)
