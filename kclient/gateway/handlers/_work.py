"""What takes long in a handler: it is worked out in steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from heapq import merge
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kclient.net.answers import Work
from kclient.protocol.lazy_arrays import lazily

if TYPE_CHECKING:
    from kclient.gateway.handlers.handler import Finish

__all__ = ["FEW", "READ_COMMITTED", "Work", "counted", "counting", "rows_for", "rows_of", "sorted_in_steps", "started"]

T = TypeVar("T")
R = TypeVar("R")

READ_COMMITTED: Final = 1
"""The isolation level of a client that wants committed records only."""
_RUN = 1024
FEW = 64
"""So many rows of a response are made at once; more of them are made in steps."""


def started(work: Work) -> Any:
    """What `Handler.begin` returns for work in steps: its result if it never pauses, else what is left of it."""
    try:
        step = next(work)
    except StopIteration as end:
        return end.value
    return _continued(step, work)


def counted(sizes: Iterable[int], then: Finish) -> Any:
    """What `Handler.begin` returns for a request whose answer has a row for each thing that it names.

    Args:
        sizes: About how many bytes of memory each row takes, with what is made for it. It begins when there is memory
            for all, which is held until the request is answered.
        then: What does the work.
    """
    return started(counting(sizes, then))


def counting(sizes: Iterable[int], then: Finish) -> Work:
    """As `counted`, where a handler works in steps before."""
    left = iter(sizes)
    while some := list(islice(left, FEW)):
        if len(some) == FEW:  # fewer do not matter
            yield sum(some)
    return then


def rows_of(arrays: Iterable[Sized], each: int) -> Iterator[int]:
    """Sizes for `counted`: a row for each element of some arrays, and one for each array, since they may be empty."""
    for array in arrays:
        yield each
        yield from repeat(each, len(array))


def rows_for(items: Collection[T], make: Callable[[T], R]) -> list[R]:
    """A row of a response for each of some items: made at once if they are few, else while the response is encoded.

    Rows of few items may hold rows of many: an array of those tells how many there are in all.
    """
    return [make(item) for item in items] if len(items) <= FEW else lazily(len(items), map(make, items))


def sorted_in_steps(items: Iterable[str]) -> Work:
    """An iterator over the items in order: runs of them are sorted, and merged while they are taken."""
    left = iter(items)
    runs: list[list[str]] = []
    while run := sorted(islice(left, _RUN)):
        runs.append(run)
        yield None
    return merge(*runs)


def _continued(step: Any, work: Work) -> Work:
    yield step
    return (yield from work)
