"""Threads for what takes long: checksums, decompression and compression, which release the interpreter's lock, and a
few things that do not, as working out who is to have which partition.

They are the gateway's own, and few: a client that has much decompressed must not keep the others from reading the
disk, which goes through the event loop's threads. Work is done in pieces of some milliseconds, one after the other in
the order in which they were asked for; who has more to do gets into line again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from kclient.concurrency import Completion
from kclient.concurrency.backend import LoopHandle
from kclient.errors import ClosedError
from kclient.net.thread_switches import call_giving_way

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """A few threads for one event loop.

    Args:
        threads: How many; by default one less than there are processors, so that one is left to the loop.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or max(1, (os.cpu_count() or 2) - 1)
        self._executor: ThreadPoolExecutor | None = None
        self._loop: LoopHandle | None = None
        self._closed = False

    def run(self, function: Callable[[], T]) -> Completion[T]:
        """Have a function called in a thread; completes in the event loop with what it returned or raised.

        Raises:
            ClosedError: The workers were closed.
        """
        if self._closed:
            raise ClosedError("the gateway is closing")
        if self._executor is None:
            self._loop = LoopHandle()
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="kclient-gateway")
        answer: Completion[T] = Completion()
        self._executor.submit(call_giving_way, function).add_done_callback(partial(self._done, answer))
        return answer

    def _done(self, answer: Completion[T], future: Future[T]) -> None:
        assert self._loop is not None
        self._loop.post(partial(_settle, answer, future))

    def close(self) -> None:
        """End the threads, after the piece that each of them has in hand; what waits is dropped."""
        self._closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


def _settle(answer: Completion[T], future: Future[T]) -> None:
    if future.cancelled():
        answer.set_error(ClosedError("the gateway is closing"))
        return
    error = future.exception()
    if error is not None:
        answer.set_error(error)
    else:
        answer.set_result(future.result())
