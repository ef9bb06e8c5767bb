"""A command that does its work again and again, until a signal ends it."""

from __future__ import annotations

import time
from collections.abc import Callable

from kclient.cli.errors import Terminated, check_terminated, reason_of
from kclient.errors import KafkaError


def _next_start(begun: float, ended: float, every: float) -> float:
    """When the next turn begins: so many seconds after the last one began, or at once where that took longer.

    Args:
        begun: When the last one began.
        ended: When it ended.
        every: Seconds from one beginning to the next.
    """
    return max(begun + every, ended)


def repeated(
    every: float,
    turn: Callable[[], object],
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Do it again and again. What another attempt may cure is told, and the next turn tries it; all else is raised.

    Args:
        every: Seconds from the beginning of a turn to that of the next.
        turn: Does it once.
        tell: Called with a sentence.
        clock: Seconds.
        wait: Waits so many seconds.

    Returns:
        0 once SIGTERM has come, whenever that was: a service that is stopped has not failed.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        Exception: What a turn raises and no later one can cure.
    """
    try:
        while True:
            check_terminated()
            begun = clock()
            failed = ""
            try:
                turn()
            except KafkaError as error:
                if not error.retriable:
                    raise
                failed = reason_of(error)
            ended = clock()
            pause = _next_start(begun, ended, every) - ended
            if failed:
                tell(f"{failed}; the next run, in {pause:.0f} s, goes on")
            wait(pause)
    except Terminated:
        return 0
