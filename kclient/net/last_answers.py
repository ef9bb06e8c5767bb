"""The end of a connection whose last answers are still on their way to the client's system."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.net.channel import Channel

__all__ = ["LastAnswers"]

_FIRST_LOOK: Final = 0.001
"""Seconds before it is asked for the first time whether the client's system has got them."""


class LastAnswers:
    """Waits until the client's system has got them, and closes: one that closes a socket whose client still sends takes
    back what has not got there.

    Args:
        channel: On which they are; all of them were written.
        supervisor: Runs the task that waits.
        patience: For so many seconds.
        close: Closes the connection.
        peer: The client's address, for the task's name.
    """

    __slots__ = ("_channel", "_close", "_patience", "_task")

    def __init__(
        self, channel: Channel, supervisor: Supervisor, patience: float, close: Callable[[], None], peer: str
    ) -> None:
        self._channel = channel
        self._patience = patience
        self._close = close
        self._task: TaskHandle | None = supervisor.spawn(self._wait, name=f"end of {peer}")
        self._task.on_done(self._ended)

    async def _wait(self) -> None:
        channel = self._channel
        try:
            with anyio.move_on_after(self._patience):
                pause = _FIRST_LOOK
                while channel.in_flight and not channel.deserted:
                    await anyio.sleep(pause)
                    pause = min(2 * pause, 1.0)
        finally:
            self._close()

    def _ended(self, _: TaskHandle) -> None:
        self._task = None
        self._close = _do_nothing  # else this and the connection would hold each other

    def cancel(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Until that is over."""
        if self._task is not None:
            await self._task.wait()


def _do_nothing() -> None:
    pass
