"""Transactions that one producer has written, and that another process ends.

Inside the client only: Kafka knows no such hand-over. To its coordinator it is one producer, with one id and epoch,
that takes its time. So whoever ends the transaction must be the only one to decide about it; what fences it (a new
producer of the `transactional.id`, the time-out) wins, and the end is refused then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from kclient.arguments import in_seconds
from kclient.cluster.coordinators import GROUP, TRANSACTION
from kclient.errors import KafkaTimeoutError
from kclient.producer.producer_id import ProducerIdAndEpoch
from kclient.producer.transaction_coordinator import CoordinatorRequests, RefusedError
from kclient.producer.transaction_errors import TransactionRequest
from kclient.producer.transaction_requests import (
    END_VERSIONS,
    OFFSET_COMMIT_VERSIONS,
    offset_commit_codes,
    offset_commit_request,
    single_code,
)
from kclient.producer.transactions import V1
from kclient.protocol.messages import AddOffsetsToTxnRequest, EndTxnRequest
from kclient.types import ConsumerGroupMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from kclient.cluster import Cluster
    from kclient.errors import KafkaError
    from kclient.types import OffsetAndMetadata, TopicPartition


class OpenTransaction(NamedTuple):
    """A transaction that was handed over; plain values, so that it travels.

    Attributes:
        transactional_id: of the producer that wrote it.
        producer_id: the producer's id.
        epoch: its epoch.
        version: the generation of the protocol that it was begun in; it has to be ended in the same one.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    version: int


async def end_transaction(cluster: Cluster, transaction: OpenTransaction, *, committed: bool, timeout: float) -> None:
    """End it as its producer would.

    The same end may be asked for again. It is refused (`ProducerFencedError`, `InvalidTxnStateError`,
    `InvalidPidMappingError`) where the transaction was ended otherwise: by its time-out, or by a newer producer
    of the id. After a lost answer that may also be said of one that was ended as wanted, if the id is in use again.

    Args:
        cluster: Finds coordinators.
        transaction: Which.
        committed: Whether it is committed; else it is aborted.
        timeout: Seconds.

    Raises:
        KafkaTimeoutError: The coordinator has not answered in time: nobody knows whether it is ended.
        KafkaError: It was refused.
    """
    coordinator = _coordinator(cluster, transaction)
    request = EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        committed=committed,
    )

    async def end() -> None:
        await coordinator.ask(TransactionRequest.END, request, single_code, versions=END_VERSIONS[transaction.version])

    await _within(timeout, end, transaction, coordinator)


async def add_offsets(
    cluster: Cluster,
    transaction: OpenTransaction,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    timeout: float,
) -> None:
    """Make offsets of a group without members a part of it, as `send_offsets_to_transaction` does.

    Args:
        cluster: Finds coordinators.
        transaction: Which.
        group_id: The group.
        offsets: By partition.
        timeout: Seconds.

    Raises:
        KafkaTimeoutError: A coordinator has not answered in time.
        KafkaError: It was refused.
    """
    coordinator = _coordinator(cluster, transaction)
    group = CoordinatorRequests(cluster, group_id, GROUP, transaction.transactional_id)
    identity = ProducerIdAndEpoch(transaction.producer_id, transaction.epoch)

    async def add() -> None:
        if transaction.version == V1:
            request = AddOffsetsToTxnRequest(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                group_id=group_id,
            )
            await coordinator.ask(TransactionRequest.ADD_OFFSETS, request, single_code)
        await group.ask(
            TransactionRequest.OFFSET_COMMIT,
            offset_commit_request(transaction.transactional_id, identity, ConsumerGroupMetadata(group_id), offsets),
            offset_commit_codes,
            versions=OFFSET_COMMIT_VERSIONS[transaction.version, False],
        )

    await _within(timeout, add, transaction, coordinator, group)


def _coordinator(cluster: Cluster, transaction: OpenTransaction) -> CoordinatorRequests:
    name = transaction.transactional_id
    return CoordinatorRequests(cluster, name, TRANSACTION, name)


async def _within(
    timeout: float,
    work: Callable[[], Coroutine[Any, Any, None]],
    transaction: OpenTransaction,
    *asked: CoordinatorRequests,
) -> None:
    problem: KafkaError | None = None
    refused: RefusedError | None = None
    done = False
    async with anyio.create_task_group() as group:

        async def give_up() -> None:
            nonlocal problem
            await anyio.sleep(timeout)
            problem = next((each.problem for each in asked if each.problem is not None), None)
            group.cancel_scope.cancel()

        group.start_soon(give_up)
        try:
            await work()
            done = True
        except RefusedError as error:
            refused = error
        group.cancel_scope.cancel()
    if refused is not None:
        raise refused.error from refused.error.__cause__
    if not done:
        text = f"The coordinator of {transaction.transactional_id!r} has not answered within {in_seconds(timeout)}"
        raise KafkaTimeoutError(f"{text}. {problem}" if problem is not None else text) from problem
