"""Matches texts: a pattern is a set of states, and a text is read once, by all of them at the same time.

What follows from a set of states and a character is remembered, so that the next texts take one look for each character
(a deterministic automaton, made as far as it is used). Nothing grows with the number of texts: what is remembered takes
about as much memory as the pattern itself at most, and is forgotten beyond that.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from kclient.errors import InvalidRegularExpressionError
from kclient.gateway.patterns.charsets import PERL, CharSet
from kclient.gateway.patterns.syntax import LONGEST, Node, PatternChoice, PatternPlace, Repeat, Sequence, parse

__all__ = ["LinearPattern"]

_SLICE: Final = 500
"""States that are looked at before others have their turn: about a millisecond."""
_REMEMBERED: Final = 2000
"""Sets of states, and characters that have followed them, of a pattern that has few states."""
_STATES_REMEMBERED: Final = 4
"""So many times as many states as there are may be in those sets, beside that."""
_WORD: Final = CharSet(PERL["w"])


class _Takes(NamedTuple):
    """A state that takes a character."""

    characters: CharSet
    then: int


class _Forks(NamedTuple):
    """A state that is several others."""

    then: tuple[int, ...]


class _Requires(NamedTuple):
    """A state that goes on where something is so."""

    place: PatternPlace
    then: int


_State = _Takes | _Forks | _Requires
_MATCHED: Final = 0
"""The state at the end."""


class _Set:
    """Some states that a text has led to, with what was before this place."""

    __slots__ = ("accepts", "before", "following", "states")

    def __init__(self, states: frozenset[int], before: str) -> None:
        self.states = states
        self.before = before
        """The last character; empty at the beginning."""
        self.following: dict[str, _Set] = {}
        self.accepts: bool | None = None
        """Whether the text may end here; None until that was asked."""


class LinearPattern:
    """A regular expression of RE2.

    Args:
        pattern: Its text.

    Raises:
        InvalidRegularExpressionError: It is none, or too large.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._states: list[_State] = [_Forks(())]
        self._visited = 0
        first = self._add(parse(pattern), _MATCHED)
        self._looks = any(isinstance(each, _Requires) for each in self._states)
        """Whether what is before a place matters."""
        self._begin = _Set(frozenset([first]), "")
        self._sets: dict[tuple[frozenset[int], str], _Set] = {}
        self._known = 0
        """How many sets and characters are remembered, and states in the sets."""
        self._most = _REMEMBERED + _STATES_REMEMBERED * len(self._states)

    def __repr__(self) -> str:
        return f"<LinearPattern {self._pattern[:100]!r}, {len(self._states)} states>"

    @property
    def size(self) -> int:
        """How many states it has."""
        return len(self._states)

    # Making states

    def _new(self, state: _State) -> int:
        if len(self._states) > LONGEST:
            self._too_large()
        self._states.append(state)
        return len(self._states) - 1

    def _too_large(self) -> None:
        raise InvalidRegularExpressionError(
            f"the pattern {self._pattern[:100]!r} is too large: with what it repeats written out it has more than "
            f"{LONGEST} states"
        )

    def _add(self, node: Node, then: int) -> int:
        """The state that reads what a node stands for, and goes on at another one."""
        self._visited += 1
        if self._visited > 4 * LONGEST:  # what is empty makes no states, and may be repeated all the same
            self._too_large()
        if isinstance(node, CharSet):
            return self._new(_Takes(node, then))
        if isinstance(node, PatternPlace):
            return self._new(_Requires(node, then))
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                then = self._add(part, then)
            return then
        if isinstance(node, PatternChoice):
            return self._new(_Forks(tuple(self._add(part, then) for part in node.parts)))
        return self._repeat(node, then)

    def _repeat(self, node: Repeat, then: int) -> int:
        if node.most < 0:
            again = self._new(_Forks(()))
            self._states[again] = _Forks((self._add(node.part, again), then))
            then = again
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self._new(_Forks((self._add(node.part, then), end)))
        for _ in range(node.least):
            then = self._add(node.part, then)
        return then

    # Matching

    def matches(self, text: str) -> bool:
        """Whether a text matches as a whole."""
        steps = self.steps(text)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def steps(self, text: str) -> Generator[None, None, bool]:
        """The same in steps: each `yield` is a place where others may have their turn."""
        present, work = self._begin, 0
        for character in text:
            following = present.following.get(character)
            if following is None:
                following, looked_at = yield from self._follow(present, character)
                work += 2 * looked_at
            present = following
            if not present.states:
                return False
            work += 1
            if work > _SLICE:
                work = 0
                yield None
        if present.accepts is None:
            present.accepts = _MATCHED in (yield from self._reached(present, ""))
        return present.accepts

    def _follow(self, present: _Set, character: str) -> Generator[None, None, tuple[_Set, int]]:
        """The set that a character leads to, and how many states were looked at to find it."""
        reached, taken = (yield from self._reached(present, character)), []
        for count, number in enumerate(reached, 1):
            if count % _SLICE == 0:
                yield
            state = self._states[number]
            if isinstance(state, _Takes) and character in state.characters:
                taken.append(state.then)
        before = character if self._looks else ""
        key = frozenset(taken), _kind(before)
        if self._known >= self._most:
            self._sets.clear()
            self._known = 0
            self._begin.following.clear()
            present.following = {}
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = _Set(key[0], before)
            self._known += len(key[0])
        self._known += 1
        present.following[character] = found
        return found, len(reached)

    def _reached(self, present: _Set, character: str) -> Generator[None, None, set[int]]:
        """The states that a set stands for where this character follows; none at the end."""
        found, left = set(present.states), list(present.states)
        count = 0
        while left:
            count += 1
            if count % _SLICE == 0:
                yield
            state = self._states[left.pop()]
            then: tuple[int, ...] = ()
            if isinstance(state, _Forks):
                then = state.then
            elif isinstance(state, _Requires) and _is_so(state.place, present.before, character):
                then = (state.then,)
            for number in then:
                if number not in found:
                    found.add(number)
                    left.append(number)
        return found


def _kind(character: str) -> str:
    """What of the character before a place matters there."""
    if not character or character == "\n":
        return character
    return "w" if character in _WORD else "-"


def _is_so(place: PatternPlace, before: str, after: str) -> bool:
    if place is PatternPlace.BEGINNING:
        return not before
    if place is PatternPlace.END:
        return not after
    if place is PatternPlace.LINE_BEGINS:
        return before in ("", "\n")
    if place is PatternPlace.LINE_ENDS:
        return after in ("", "\n")
    edge = (before != "" and before in _WORD) is not (after != "" and after in _WORD)
    return edge is (place is PatternPlace.WORD_EDGE)
