"""Scripts: logic that is written once for async and blocking faces.

A script is a generator that yields what is to be waited for or called, as an object that says it; a face carries that
out in its own way and gives the result back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
ActionT = TypeVar("ActionT")


def drive(script: Generator[ActionT, Any, T], carry_out: Callable[[ActionT], Any]) -> T:
    """Carry out what a script says, in the caller's thread, until it has its result.

    Args:
        script: The script.
        carry_out: Does what it yields; the script is given the result, or is thrown the error.
    """
    try:
        action = next(script)
        while True:
            try:
                result = carry_out(action)
            except BaseException as error:  # noqa: BLE001 - the script decides what to do about it
                action = script.throw(error)
            else:
                action = script.send(result)
    except StopIteration as end:
        found: T = end.value
        return found


async def drive_async(script: Generator[ActionT, Any, T], carry_out: Callable[[ActionT], Awaitable[Any]]) -> T:
    """As `drive`, and awaits what `carry_out` gives."""
    try:
        action = next(script)
        while True:
            try:
                result = await carry_out(action)
            except BaseException as error:  # noqa: BLE001 - the script decides what to do about it
                action = script.throw(error)
            else:
                action = script.send(result)
    except StopIteration as end:
        found: T = end.value
        return found
