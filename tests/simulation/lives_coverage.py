"""Counts what the lives of `lives` have the gateway's logs meet: a life in which nothing is repeated proves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from kclient.gateway.append import Append
from kclient.gateway.log import Duplicate, PartitionLog
from kclient.gateway.partition import Partition, State


class _CountingLog(PartitionLog):
    __slots__ = ("__weakref__",)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What happens meanwhile:

    - `appends`: that got offsets, and `idempotent` ones among them.
    - `duplicates`: batches that were there already.
    - `on their way`: duplicates of appends that were not durable yet.
    - `queued twice`: duplicates that came before their partition was open.
    - `queued`: appends that came before their partition was open, behind others that did.
    - `settling`: waits for appends to be settled; `left behind` of them, because the partition went.
    """
    seen: Counter[str] = Counter()
    queued: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
    prepare, settled = PartitionLog.prepare, Partition.settled

    def counting_prepare(
        log: Any, header: Any, now_ms: int, timestamp: int = -1, waiting: Append | None = None
    ) -> Append | Duplicate:
        if waiting is not None:
            seen["queued"] += bool(queued.get(log))
            queued[log] = queued.get(log, 0) + 1
        found = prepare(log, header, now_ms, timestamp, waiting)
        if isinstance(found, Duplicate):
            seen["duplicates"] += 1
            seen["on their way"] += found.pending is not None
            seen["queued twice"] += waiting is not None
        else:
            seen["appends"] += 1
            seen["idempotent"] += header.producer_id >= 0
        return found

    async def counting_settled(partition: Partition) -> None:
        waits = bool(partition.log.pending)
        await settled(partition)
        seen["settling"] += waits
        seen["left behind"] += waits and partition.state is State.GONE

    with (
        mock.patch.object(PartitionLog, "prepare", counting_prepare),
        mock.patch.object(Partition, "settled", counting_settled),
        mock.patch("kclient.gateway.partition.PartitionLog", _CountingLog),
    ):
        yield seen
