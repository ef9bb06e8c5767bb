"""Large receive buffers that are used again once nobody looks at what was received into them.

New memory is what makes receiving large frames slow: the interpreter fills it with zeros and the system maps it page
by page, which takes longer than the copy out of the socket. So each thread keeps a few large buffers. A frame is
handed out as a view of its buffer; when the last view is gone, the next frame may have the buffer.
"""

from __future__ import annotations

import threading

__all__ = ["ReceiveBuffers", "receive_buffers"]

SMALLEST = 1024 * 1024
"""Smaller buffers, in bytes, come from the interpreter and go back to it: for them it is quick."""
MOST_BUFFERS = 4
MOST_BYTES = 128 * 1024 * 1024
PATIENCE = 256
"""How many reads that needed no large buffer it takes until all of them are given back."""


class ReceiveBuffers:
    """The large receive buffers of one thread."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._unneeded = 0

    def take(self, size: int) -> memoryview:
        """A writable buffer of exactly that many bytes, whatever stands in it."""
        if size < SMALLEST:
            return memoryview(bytearray(size))
        self._unneeded = 0
        for buffer in self._buffers:
            # a small frame must not hold a large buffer
            if size <= len(buffer) <= 2 * size and _is_free(buffer):
                return memoryview(buffer)[:size]
        buffer = bytearray(-(-size // SMALLEST) * SMALLEST)  # rounded up: frames are rarely of the same size
        self._buffers.append(buffer)
        while len(self._buffers) > MOST_BUFFERS or sum(map(len, self._buffers)) > MOST_BYTES:
            del self._buffers[0]
        return memoryview(buffer)[:size]

    def not_needed(self) -> None:
        """A read went by without a large buffer."""
        if self._buffers:
            self._unneeded += 1
            if self._unneeded >= PATIENCE:
                self.clear()

    def clear(self) -> None:
        """Give all back: free buffers at once, the others when the last view of them is gone."""
        self._buffers.clear()


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
