"""From what the coordinator answers to what a handler returns, without a task that waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from kclient.concurrency import Completion

T = TypeVar("T")
R = TypeVar("R")

Answer: TypeAlias = R | Completion[R]
"""A response that is there, or one that comes."""


def when_done(waited: Completion[T], make: Callable[[T], R]) -> Answer[R]:
    """The answer made of a result: at once if the result is there, else when it comes.

    Args:
        waited: Completes with a result, never with an error.
        make: Makes the answer; must not raise.
    """
    if waited.done:
        return make(waited.result())
    answer: Completion[R] = Completion()
    waited.on_done(lambda done: answer.set_result(make(done.result())))
    return answer
