"""Reads that the store does not answer for long, as where its disk hangs: nobody waits for them, nor asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import KafkaStorageError

if TYPE_CHECKING:
    from kclient.gateway.partition import Partition
    from kclient.htp.port import Pulled

_LONG_S: Final = 1.0
"""So long a read is waited for."""


class SlowReadError(KafkaStorageError):
    """The store has not answered a read of the partition yet."""


class _Read:
    __slots__ = ("error", "late", "over", "pulled")

    def __init__(self) -> None:
        self.pulled: Pulled | None = None
        self.error: Exception | None = None
        self.over = anyio.Event()
        self.late = False
        """Whether nobody waits for it any more."""


class SlowReads:
    """Reads partitions, each of them once at a time where that takes long.

    Args:
        spawn: Starts a task of the gateway.
    """

    def __init__(self, spawn: Callable[..., object]) -> None:
        self._spawn = spawn
        self._late: dict[Partition, int] = {}
        """Those that are being read by tasks which nobody waits for, and how many these are."""

    async def pull(self, partition: Partition, offset: int, size: int, *, patient: bool) -> Pulled:
        """What `Partition.pull` gives.

        Args:
            partition: It is open.
            offset: From where on.
            size: Bytes, at most, but one batch in any case.
            patient: Whether to wait for a second, else hardly.

        Raises:
            SlowReadError: That has taken longer, or an earlier one does: the partition's waiters are woken afterwards.
            KafkaError: It cannot be read.
        """
        if partition in self._late:
            raise SlowReadError(f"{partition}: the store does not answer")
        read = _Read()
        self._spawn(self._read, read, partition, offset, size, name=f"read {partition}")
        try:
            with anyio.move_on_after(_LONG_S if patient else _LONG_S / 20):
                await read.over.wait()
        finally:
            if not read.over.is_set():
                read.late = True
                self._late[partition] = self._late.get(partition, 0) + 1
        if read.error is not None:
            raise read.error
        if read.pulled is None:
            raise SlowReadError(f"{partition}: the store does not answer")
        return read.pulled

    async def _read(self, read: _Read, partition: Partition, offset: int, size: int) -> None:
        try:
            read.pulled = await partition.pull(offset, max_bytes=size)
        except Exception as error:  # noqa: BLE001  (for whoever waits; else the next one is told)
            read.error = error
        finally:
            read.over.set()
            if read.late:
                left = self._late.pop(partition) - 1
                if left:
                    self._late[partition] = left
                partition.wake()
