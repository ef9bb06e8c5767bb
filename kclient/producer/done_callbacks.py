"""Functions that an asyncio event loop calls once a record's fate is known, as those of its futures."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable
    from contextvars import Context
    from typing import Any

    from kclient.producer.batch import ProducerBatch


class DoneCallback:
    """Waits at a record's batch, or at that into which the record went when it was split.

    Args:
        batch: The record's batch.
        index: Its index there.
        function: What the loop is to call.
        argument: With what.
        loop: The loop of this thread.
        context: Where it is called.
    """

    __slots__ = ("_argument", "_batch", "_context", "_function", "_index", "_loop", "_thread")

    def __init__(
        self,
        batch: ProducerBatch,
        index: int,
        function: Callable[[Any], object],
        argument: object,
        loop: AbstractEventLoop,
        context: Context,
    ) -> None:
        self._batch, self._index = batch.locate(index)
        self._function = function
        self._argument = argument
        self._loop = loop
        self._thread = threading.get_ident()
        self._context = context

    def __call__(self) -> None:
        """Have it called if the fate is known, else wait for the next change; comes from the thread that made it."""
        while True:
            self._batch, self._index = self._batch.locate(self._index)
            if self._batch.done:
                self._call_soon()
                return
            if self._batch.add_done_callback(self._index, self._function, self):
                return

    def _call_soon(self) -> None:
        here = threading.get_ident() == self._thread
        call_soon = self._loop.call_soon if here else self._loop.call_soon_threadsafe
        with suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits there
            call_soon(self._function, self._argument, context=self._context)
