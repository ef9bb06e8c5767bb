"""Transactions that one blocking producer writes and another one, of another process, ends.

No part of the public face: `kclient.spark` alone uses it. The rules for whoever does are in
`kclient.producer.open_transactions`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from kclient.errors import KafkaError
from kclient.producer import open_transactions
from kclient.producer.open_transactions import OpenTransaction as OpenTransaction
from kclient.producer.transaction_driver import TransactionDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from kclient.cluster import Cluster
    from kclient.sync.producer import Producer
    from kclient.types import OffsetAndMetadata, TopicPartition

    _Work: TypeAlias = Callable[[Cluster], Coroutine[object, object, None]]

_AT_ONCE = 32
"""So many transactions are ended side by side: what coordinators answer together."""


class TransactionOffsets:
    """Offsets that become a part of a transaction before it is committed.

    Args:
        group_id: A group without members.
        offsets: By partition.
    """

    def __init__(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.group_id: str = group_id
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = dict(offsets)


def hand_over(producer: Producer) -> OpenTransaction | None:
    """Wait until all that was sent in the transaction is there, and leave it open; then close the producer.

    Waits up to `max.block.ms`, as `commit_transaction` does.

    Returns:
        The transaction; None where nothing was sent, so that there is none to end.

    Raises:
        TransactionAbortableError: It cannot be committed; `__cause__` says why.
        KafkaTimeoutError: It takes longer than `max.block.ms`.
        KafkaError: As for `commit_transaction`.
    """
    producer._transact(TransactionDriver.hand_over)

    async def found() -> OpenTransaction | None:
        return producer._life.transactions().handed_over

    return producer._running().call(found)


def commit_open(
    producer: Producer, transactions: Sequence[tuple[OpenTransaction, TransactionOffsets]], *, timeout: float
) -> dict[str, KafkaError]:
    """Commit transactions, each with its offsets, side by side.

    The offsets join all of them before any is ended: where one was ended otherwise, which is refused then, none is
    committed.

    Args:
        producer: Any producer of that cluster; its own transactions are not touched.
        transactions: Which.
        timeout: Seconds for each request.

    Returns:
        By transactional id why one cannot be committed, or may not have been (`KafkaTimeoutError`).
    """

    async def add(cluster: Cluster, transaction: OpenTransaction, offsets: TransactionOffsets) -> None:
        await open_transactions.add_offsets(cluster, transaction, offsets.group_id, offsets.offsets, timeout=timeout)

    added = {one.transactional_id: partial(add, transaction=one, offsets=offsets) for one, offsets in transactions}
    return _side_by_side(producer, added) or _end(
        producer, (one for one, _ in transactions), committed=True, timeout=timeout
    )


def abort_open(producer: Producer, transactions: Iterable[OpenTransaction], *, timeout: float) -> dict[str, KafkaError]:
    """Abort transactions, side by side. One that is ended already stays what it is.

    Args:
        producer: Any producer of that cluster; its own transactions are not touched.
        transactions: Which.
        timeout: Seconds for each request.

    Returns:
        By transactional id why one was not aborted by this.
    """

    return _end(producer, transactions, committed=False, timeout=timeout)


def _end(
    producer: Producer, transactions: Iterable[OpenTransaction], *, committed: bool, timeout: float
) -> dict[str, KafkaError]:
    async def end(cluster: Cluster, transaction: OpenTransaction) -> None:
        await open_transactions.end_transaction(cluster, transaction, committed=committed, timeout=timeout)

    return _side_by_side(producer, {one.transactional_id: partial(end, transaction=one) for one in transactions})


def _side_by_side(producer: Producer, works: Mapping[str, _Work]) -> dict[str, KafkaError]:
    failed: dict[str, KafkaError] = {}

    async def run(name: str, work: _Work, turns: anyio.Semaphore) -> None:
        async with turns:
            try:
                await work(producer._life.cluster)
            except KafkaError as error:
                failed[name] = error

    async def run_all() -> None:
        producer._life.status.check()
        turns = anyio.Semaphore(_AT_ONCE)
        async with anyio.create_task_group() as group:
            for name, work in works.items():
                group.start_soon(run, name, work, turns)

    producer._running().call(run_all)
    return failed
