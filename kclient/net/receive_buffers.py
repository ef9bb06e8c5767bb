"""Large receive buffers that are used again once nobody looks at what was received into them.

New memory is what makes receiving large frames slow: the interpreter fills it with zeros and the system maps it page
by page, which takes longer than the copy out of the socket. So each thread keeps a few large buffers. A frame is
handed out as a view of its buffer; when the last view is gone, the next frame may have the buffer.

They count with what the process keeps (`kclient.memory_ledger`), and are given up when a gateway in it is short of it.
Where there is none they have a limit of their own only.

`LargeBuffers` is another pool, with another rule: it has sizes in powers of two, so that a buffer fits many reads, and
keeps what is in use. Here new buffers take the place of older ones, and all are given back when frames are small again.
"""

from __future__ import annotations

import threading
from typing import Final

from kclient.concurrency import LoopHandle
from kclient.memory_ledger import CacheAccount, process_memory

__all__ = ["ReceiveBuffers", "receive_buffers"]

SMALLEST = 256 * 1024
"""Smaller buffers, in bytes, come from the interpreter and go back to it: for them it is quick."""
_MOST_BUFFERS = 16
MOST_BYTES = 128 * 1024 * 1024
_SHARE: Final = 8
"""They take one part in so many of what the process may keep, at most, where there is a gateway in it."""
PATIENCE = 256
"""How many reads that needed no large buffer it takes until all of them are given back."""


class ReceiveBuffers:
    """The large receive buffers of one thread."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._unneeded = 0
        self._loop: LoopHandle | None = None
        self._account: CacheAccount | None = None
        """Of the thread's event loop, which gives the buffers up."""

    def take(self, size: int) -> memoryview:
        """A writable buffer of exactly that many bytes, whatever stands in it."""
        if size < SMALLEST:
            return memoryview(bytearray(size))
        self._unneeded = 0
        self._find_account()
        for buffer in self._buffers:
            # a small frame must not hold a large buffer
            if size <= len(buffer) <= 2 * size and _is_free(buffer):
                return memoryview(buffer)[:size]
        made = self._keep(-(-size // SMALLEST) * SMALLEST)  # frames are rarely of the same size
        # whoever holds one that is not kept counts what it asked for
        return memoryview(bytearray(size) if made is None else made)[:size]

    def _keep(self, size: int) -> bytearray | None:
        """A new buffer that is used again, rather than older ones; None if there is no room for it."""
        account = self._account
        most = MOST_BYTES if account is None else account.limit
        if size > most:
            return None
        kept = self._buffers
        while len(kept) >= _MOST_BUFFERS or sum(map(len, kept)) + size > most:
            kept = kept[1:]
        more = 0 if account is None else sum(map(len, kept)) + size - account.held
        if account is not None and more > 0 and not account.has_room(more):
            return None
        buffer = bytearray(size)
        self._buffers = [*kept, buffer]
        if account is not None:
            account.add(more)
        return buffer

    def _find_account(self) -> None:
        """Count with the event loop that runs in the thread now: several may do so one after the other."""
        if self._loop is not None and self._loop.is_current:
            return
        try:
            loop = LoopHandle()
        except RuntimeError:  # none does
            loop = None
        if loop is self._loop:
            return
        self.clear()  # there may be no room for them where they would count from now on
        self._loop, self._account = loop, None
        if loop is not None:
            self._account = process_memory().cache("receive buffers", _SHARE, self.clear, MOST_BYTES, loop)

    def not_needed(self) -> None:
        """A read went by without a large buffer."""
        if self._buffers:
            self._unneeded += 1
            if self._unneeded >= PATIENCE:
                self.clear()

    def clear(self) -> None:
        """Give all back: free buffers at once, the others when the last view of them is gone."""
        self._buffers = []
        if self._account is not None:
            self._account.add(-self._account.held)


def _is_free(buffer: bytearray) -> bool:
    """Whether there is no view of it: a bytearray does not change its size while there is one."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


class _Local(threading.local):
    def __init__(self) -> None:
        self.pool = ReceiveBuffers()


_local = _Local()


def receive_buffers() -> ReceiveBuffers:
    """The pool of the present thread."""
    return _local.pool
