"""Giving up very many objects in steps: to free half a million at once takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSequence
from functools import cache
from sys import getrefcount
from types import GeneratorType
from typing import Any, Final

from kclient.net.fair_queue import Job
from kclient.net.garbage import HoldOff

__all__ = ["emptied", "in_slices", "remains_of"]

_AT_ONCE: Final = 256
_FEW: Final = 16
"""Elements of a list go with what holds them if there are fewer."""
_BOX: Final[list[list[Any]]] = [[]]
_OURS: Final = getrefcount(_BOX[0])
"""References to a list that only another list has, as they are counted by asking for them in this way. A variable's may
be counted or not, that differs by version."""


def in_slices(steps: Iterator[None], clock: Callable[[], float]) -> Job:
    """Steps as a job of a flow, whose clock it is. Until they are done there are no full garbage collections."""
    hold_off = HoldOff()
    hold_off.begin()

    def some(until: float) -> bool:
        more = False
        try:
            more = any(clock() >= until for _ in steps)
        finally:
            if not more:
                hold_off.end()
        return more

    return some


def emptied(items: MutableSequence[Any] | dict[Any, Any]) -> Iterator[None]:
    """Take everything out of a list or dict."""
    while items:
        if isinstance(items, dict):
            for _ in range(min(_AT_ONCE, len(items))):
                items.popitem()
        else:
            del items[-_AT_ONCE:]
        yield


def remains_of(work: object, error: BaseException | None = None) -> Iterator[None] | None:
    """What work in steps that comes to no end holds in lists, given up in steps; None if that is nothing.

    Called while the work still has it: after that the work may be closed, and the error forgotten. Then lists that
    nobody else has are emptied in steps; the others are somebody else's, and left alone.

    Args:
        work: A generator, which waits in others perhaps.
        error: Why it has ended, if it has; caught by the caller.
    """
    kept: dict[int, list[Any]] = {}
    while isinstance(work, GeneratorType) and work.gi_frame is not None:
        _keep(work.gi_frame.f_locals.values(), 1, kept)
        work = work.gi_yieldfrom
    trace = error.__traceback__ if error else None
    while trace is not None and (trace := trace.tb_next) is not None:  # the first is the caller, who is not done
        _keep(trace.tb_frame.f_locals.values(), 1, kept)
    return _given_up(kept) if kept else None


def _keep(values: Iterable[Any], least: int, kept: dict[int, list[Any]]) -> None:
    """Keep lists that are among the values, or in their slots, and have so many elements at least; by their ids.

    Not copies of them: one of half a million elements takes the collector 30 ms as long as it is young.
    """
    for value in values:
        if type(value) is list:
            if len(value) >= least:
                kept[id(value)] = value
        else:
            for name in _slots(type(value)):  # type: ignore[arg-type]  # the class is hashed, not an instance
                inner = getattr(value, name, None)
                if type(inner) is list and len(inner) >= least:
                    kept[id(inner)] = inner


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in vars(each).get("__slots__", ()))


def _given_up(kept: dict[int, list[Any]]) -> Iterator[None]:
    pile: list[list[Any]] = []
    while kept:
        pile.append(kept.popitem()[1])
        while pile[0] and getrefcount(pile[0]) == _OURS:
            some = pile[0][-_AT_ONCE:]
            del pile[0][-_AT_ONCE:]
            _keep(some, _FEW, kept)  # what they hold by themselves
            del some
            yield
        pile.clear()
