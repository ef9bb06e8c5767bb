"""Counts what the lives of `lives` have the gateway's logs meet: a life in which nothing is repeated proves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from kclient.gateway.append import Append, AppendState
from kclient.gateway.log import Duplicate, PartitionLog
from kclient.gateway.partition import Partition
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.takeover import Takeover
from kclient.gateway.undecided import Undecided


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
    - `unknown`: appends whose outcome was not known, when that was found out; `found` of them were stored.
    - `opened anew`: partitions, to find that out; `tried again` where that failed.
    """
    seen: Counter[str] = Counter()
    queued: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
    prepare, settled = PartitionLog.prepare, Partition.settled
    again, decide = Takeover.again, Undecided.decide

    def counting_prepare(
        log: Any, header: Any, now_ms: int, timestamp: int, waiting: Append | None, *rest: Any
    ) -> Append | Duplicate:
        if waiting is not None:
            seen["queued"] += bool(queued.get(log))
            queued[log] = queued.get(log, 0) + 1
        found = prepare(log, header, now_ms, timestamp, waiting, *rest)
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
        seen["left behind"] += waits and partition.state is PartitionPhase.GONE

    async def counting_again(takeover: Takeover, *args: Any) -> Any:
        seen["tried again"] += 1
        opened = await again(takeover, *args)
        seen["tried again"] -= 1
        seen["opened anew"] += 1
        return opened

    def counting_decide(undecided: Undecided, *args: Any) -> list[Append]:
        decided = decide(undecided, *args)
        seen["unknown"] += len(decided)
        seen["found"] += sum(append.state is AppendState.DURABLE for append in decided)
        return decided

    with (
        mock.patch.object(PartitionLog, "prepare", counting_prepare),
        mock.patch.object(Partition, "settled", counting_settled),
        mock.patch.object(Takeover, "again", counting_again),
        mock.patch.object(Undecided, "decide", counting_decide),
        mock.patch("kclient.gateway.takeover.PartitionLog", _CountingLog),
    ):
        yield seen
