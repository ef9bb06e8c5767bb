"""What the gateways of a cluster ask of one another: leaders of partitions, and coordinators of transactions.

Each of them leads some partitions and coordinates some transactions, so a transaction's coordinator and the leaders
of its partitions may be different gateways. Whoever needs another one asks `Peers`, which knows where it is:
`LocalPeers` makes the calls in the process, `peer_calls.ClusterPeers` those to others. Partitions are named by the ids
of their topics: one that was deleted and made anew is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio

from kclient.concurrency import Completion
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.append import AppendState
from kclient.gateway.error_codes import code_of
from kclient.gateway.partition import Partition
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_states import PartitionPhase
from kclient.net.fair_queue import Pace
from kclient.records import EndMarker

if TYPE_CHECKING:
    from kclient.gateway.append import Append
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.topics.table import TopicTable
    from kclient.net.fair_queue import Flow

_BUMPS_SINCE: Final = 2
"""The version of transactions from which on an end has a greater epoch (KIP-890)."""
_PATIENCE_S: Final = 10.0
"""Seconds that the ends of transactions are waited for to be durable, once they are appended."""


class TransactionOf(NamedTuple):
    """A producer's transaction, as it is named to its coordinator."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class EndOfTransaction(NamedTuple):
    """What its coordinator has decided of a transaction."""

    producer_id: int
    producer_epoch: int
    """The one that the producer goes on with; it may be greater than that of the transaction (KIP-890)."""
    marker: EndMarker
    partitions: Collection[PartitionId]
    transaction_version: int = 1
    """2 where its epoch is greater than that of the transaction: batches of that epoch are of a later one then."""


Outcomes = Mapping[PartitionId, int]
"""Kafka's error code for each partition."""


class PartitionEnds(Protocol):
    """Knows where partitions end."""

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        """The high watermarks of partitions.

        Returns:
            By partition. One that is not there, or whose leader or store does not answer, is missing.
        """
        ...


class Peers(PartitionEnds, Protocol):
    """The other gateways, and this one."""

    async def verify(self, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool) -> Outcomes:
        """Ask a transaction's coordinator whether partitions are in it, before the first batch is appended.

        It is cancelled when whoever asks cannot wait longer.

        Args:
            transaction: The transaction.
            partitions: Led by whoever asks.
            add: Whether the coordinator is to add those that are not (KIP-890, Produce version 12 and newer).
        """
        ...

    async def join_group(self, transaction: TransactionOf, group_id: str) -> None:
        """Have a transaction's coordinator add a group, before offsets of it are taken (KIP-890, TxnOffsetCommit 5).

        Args:
            transaction: The transaction.
            group_id: Coordinated by whoever asks.

        Raises:
            KafkaError: Why it is not added; `NotCoordinatorError` where nobody coordinates the transaction now.
        """
        ...

    def tell_outcome(self, group_ids: Collection[str]) -> None:
        """A transaction is completed: the gateways of these groups had better look what has become of their offsets.

        It does not wait. One that is not told finds it out by itself, a little later.
        """
        ...

    async def write_markers(self, ends: Sequence[EndOfTransaction]) -> list[Outcomes]:
        """Have the leaders of partitions append the ends of transactions; each answers when that is durable.

        What it tells of a partition that is not led where it was looked for, or cannot be written, can be tried again;
        so can one whose store does not answer in time.
        """
        ...


class TransactionVerifier(Protocol):
    """Coordinates transactions, as leaders of partitions see it."""

    async def verify(self, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool) -> Outcomes:
        """As `Peers.verify`, of a transaction that is coordinated here."""
        ...

    async def join_group(self, transaction: TransactionOf, group_id: str) -> None:
        """As `Peers.join_group`, of a transaction that is coordinated here."""
        ...


class LocalPeers:
    """This gateway, as if it were the only one.

    Args:
        topics: All topics.
        partitions: Their partitions.
        coordinator: Of transactions.
        decided: Is told the groups of transactions that are completed.
        flow: In whose turns the ends of transactions are appended.
    """

    def __init__(
        self,
        topics: TopicTable,
        partitions: PartitionTable,
        coordinator: TransactionVerifier,
        decided: Callable[[Collection[str]], object],
        flow: Flow,
    ) -> None:
        self._topics = topics
        self._decided = decided
        self._partitions = partitions
        self._coordinator = coordinator
        self._flow = flow

    async def verify(self, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool) -> Outcomes:
        """Asks the coordinator here."""
        return await self._coordinator.verify(transaction, partitions, add=add)

    async def join_group(self, transaction: TransactionOf, group_id: str) -> None:
        """Asks the coordinator here."""
        await self._coordinator.join_group(transaction, group_id)

    def tell_outcome(self, group_ids: Collection[str]) -> None:
        """Tells the groups that are coordinated here."""
        self._decided(group_ids)

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        """Of those that are led here; they are opened, all at the same time, and waited for a while only."""
        found: dict[PartitionId, int] = {}
        here: list[tuple[PartitionId, Partition]] = []
        pace = Pace(self._flow)
        for each in partitions:
            if pace.over:
                await pace.pause()
            record = self._topics.by_id(each.topic_id)
            partition = None if record is None else self._partitions.of(record, each.partition)
            if partition is not None:
                partition.open_soon()
                here.append((each, partition))
        with anyio.move_on_after(_PATIENCE_S):
            for each, partition in here:
                if pace.over:
                    await pace.pause()
                with suppress(KafkaError):
                    await partition.ready()
                    found[each] = partition.log.high_watermark
        return found

    async def write_markers(
        self, ends: Sequence[EndOfTransaction], *, patience_s: float = _PATIENCE_S, flow: Flow | None = None
    ) -> list[Outcomes]:
        """Appends all of them, then waits for them; one whose store hangs holds up the answer for a while only.

        Args:
            ends: They.
            patience_s: Seconds for which partitions are waited for to be opened, and then ends to be durable.
            flow: Whose turns it takes, where a client asks for it.
        """
        flow = flow or self._flow
        appends: list[dict[PartitionId, Append | int]] = [{} for _ in ends]
        pace = Pace(flow)
        async with anyio.create_task_group() as tasks:
            tasks.cancel_scope.deadline = anyio.current_time() + patience_s
            for end, found in zip(ends, appends, strict=True):
                await pace.pause()
                for each in end.partitions:
                    if pace.over:
                        await pace.pause()
                    appended = self._append(end, each)
                    if isinstance(appended, Partition):
                        tasks.start_soon(self._append_soon, appended, end, each, found)
                    else:
                        found[each] = appended
        pace = Pace(flow)
        with anyio.move_on_after(patience_s):
            for found in appends:
                await pace.pause()
                for append in found.values():
                    if pace.over:
                        await pace.pause()
                    if await _durable(append):
                        pace = Pace(flow)
        outcomes: list[Outcomes] = []
        for end, found in zip(ends, appends, strict=True):
            await pace.pause()
            told: dict[PartitionId, int] = {}
            for each in end.partitions:
                if pace.over:
                    await pace.pause()
                told[each] = _outcome(found.get(each, ErrorCode.REQUEST_TIMED_OUT))
            outcomes.append(told)
        return outcomes

    def _append(self, end: EndOfTransaction, wanted: PartitionId) -> Append | Partition | int:
        """Append the end of a transaction to a partition; the partition itself if it has to be opened first."""
        try:
            record = self._topics.by_id(wanted.topic_id)
            if record is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partition = self._partitions.check(record, wanted.partition)
            if partition.state is not PartitionPhase.OPEN:
                return partition
            return partition.append_end(end.producer_id, end.producer_epoch, end.marker, bumped=_bumps(end))
        except KafkaError as error:
            return code_of(error)

    async def _append_soon(
        self,
        partition: Partition,
        end: EndOfTransaction,
        wanted: PartitionId,
        found: dict[PartitionId, Append | int],
    ) -> None:
        try:
            await partition.ready()
            found[wanted] = partition.append_end(end.producer_id, end.producer_epoch, end.marker, bumped=_bumps(end))
        except KafkaError as error:
            found[wanted] = code_of(error)


def _bumps(end: EndOfTransaction) -> bool:
    return end.transaction_version >= _BUMPS_SINCE


async def _durable(append: Append | int) -> bool:
    """Wait until it is durable; whether it was not."""
    if isinstance(append, int) or append.state >= AppendState.DURABLE:
        return False
    done: Completion[None] = Completion()
    append.watch(AppendState.DURABLE, lambda: done.set_result(None))
    await done.wait()
    return True


def _outcome(append: Append | int) -> int:
    if isinstance(append, int):
        return append
    if append.state < AppendState.DURABLE:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NONE if append.error is None else code_of(append.error)
