"""Ends what a backend never ends: a test that blocks its event loop, or a store that does not open."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeVar

import pytest

__all__ = ["EXIT_CODE", "SECONDS", "in_time", "watched"]

T = TypeVar("T")

SECONDS: Final = 120.0
"""How long a test may take, and the store to open or to close."""
EXIT_CODE: Final = 70
"""Of a run that could be ended in no other way."""
_GRACE: Final = 1 / 8
"""Part of that time after which what was cancelled, and goes on, is interrupted."""
_AGAIN: Final = 1 / 10
"""Part of the grace between that and the next interruption: what swallows one as it swallows a cancellation, or has an
event loop do so, is caught at another place by one of the next."""
_LAST: Final = 1 / 2
"""Part of it after which what cannot be interrupted either ends the run."""
_LEAST_S: Final = 1.0
"""Of both, at least."""


@contextmanager
def watched(what: str, seconds: float) -> Iterator[None]:
    """Have what blocks its thread fail: in an event loop no time-out of that loop comes to its turn then.

    Where a signal can be had, it raises `pytest.fail` wherever the main thread is. What even that does not end, as a
    call of a library that never comes back to Python, ends the process, with the stacks of all threads.

    Args:
        what: Is under way, as the subject of a sentence.
        seconds: How long it may take by itself.
    """
    grace = max(seconds * _GRACE, _LEAST_S)
    limit = seconds + grace
    most = limit + max(seconds * _LAST, 2 * grace)
    over = threading.Event()
    last = threading.Thread(target=_end_run, args=(over, what, most), name="htp-contract", daemon=True)
    last.start()
    try:
        text = f"{what} took longer than {seconds:g} seconds, and could not be cancelled"
        with _interrupted(text, limit, again=grace * _AGAIN):
            yield
    finally:
        over.set()


@contextmanager
def _interrupted(text: str, limit: float, again: float) -> Iterator[None]:
    """Raise in the main thread after so many seconds, and again and again from then on."""
    free = (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    )
    if not free:  # pytest-timeout uses it, for one, and does the same
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(text)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _end_run(over: threading.Event, what: str, seconds: float) -> None:
    if over.wait(seconds):
        return
    written = sys.__stderr__ or sys.stderr
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        written.write(f"\nthread {names.get(number, number)}:\n{''.join(traceback.format_stack(frame))}")
    written.write(f"\n{what} cannot be ended: the backend does not come back. The run ends here.\n")
    written.flush()
    os._exit(EXIT_CODE)


def in_time(function: Callable[[], T], seconds: float) -> T:
    """Call a function in a thread of its own; the thread is left alone if it takes longer.

    Raises:
        TimeoutError: It did.
        BaseException: What the function raised.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001  (raised below)
            failure.append(error)

    thread = threading.Thread(target=run, name="htp-contract-asks", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"it was not opened, asked and closed within {seconds:g} seconds")
    if failure:
        raise failure[0]
    return outcome[0]
