"""Transactions: list, describe, abort those that hang, fence the producers that use an id."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from kclient.admin.answers import check_code, check_retriable, failure, left_out, row_of
from kclient.admin.arguments import as_abort_spec, as_broker_id, as_duration, as_producer_ids
from kclient.admin.listing import Listing
from kclient.admin.topics import TopicOperations
from kclient.admin.transaction_types import (
    AbortTransactionSpec,
    ActiveProducer,
    FencedProducer,
    HangingTransaction,
    TransactionDescription,
    TransactionListing,
)
from kclient.admin.types import PartialFailureError, raise_failures
from kclient.arguments import as_names, as_partitions, check_text, shown
from kclient.cluster import TRANSACTION, Trial, version_for
from kclient.errors import TransactionalIdNotFoundError, UnknownTopicOrPartitionError, UnsupportedVersionError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kclient.types import Node, Partition, TopicPartition

MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""`transaction.max.timeout.ms` of brokers, unless they have another one."""
_FENCING_TIMEOUT_MS = 1000
"""What a coordinator notes as the time-out of the next transaction, which no producer begins: any broker takes it."""
_DURATION_VERSION = 1
_PATTERN_VERSION = 2


class TransactionOperations(TopicOperations):
    """The admin client's calls about transactions."""

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        min_duration_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout: float | None = None,
    ) -> Listing[TransactionListing]:
        """Every transactional id that a coordinator knows, sorted by name (KIP-664).

        A broker that does not answer in time keeps nobody from hearing of the others' ids: a warning is logged, and
        `Listing.errors` tells why.

        Args:
            states: only those in one of these states, such as "Ongoing".
            producer_ids: only those of these producers.
            min_duration_ms: only those whose transaction began longer ago than so many milliseconds (KIP-994, Kafka
                3.8).
            transactional_id_pattern: only ids that match this regular expression of RE2 as a whole (KIP-1152, Kafka
                4.1).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            UnsupportedVersionError: a broker is too old for the call, or for one of its filters.
            ValueError: a broker knows no such state, or a number cannot be.
            InvalidRegularExpressionError: the pattern is none.
            TypeError: an argument is of another type.
        """
        request = ListTransactionsRequest(
            state_filters=as_names(states, "states"),
            producer_id_filters=as_producer_ids(producer_ids),
            duration_filter=-1 if min_duration_ms is None else as_duration(min_duration_ms, "min_duration_ms"),
            transactional_id_pattern=transactional_id_pattern,
        )
        if transactional_id_pattern is not None:
            check_text(transactional_id_pattern, "transactional_id_pattern")

        async def ask(trial: Trial, connection: Connection, node_id: int) -> list[TransactionListing]:
            version = version_for(connection, ListTransactionsRequest)
            if min_duration_ms is not None and version < _DURATION_VERSION:
                raise UnsupportedVersionError(f"{connection.address} cannot filter by min_duration_ms (Kafka 3.8 can)")
            if transactional_id_pattern is not None and version < _PATTERN_VERSION:
                raise UnsupportedVersionError(
                    f"{connection.address} cannot filter by transactional_id_pattern (Kafka 4.1 can)"
                )
            response = await self._exchange(
                trial,
                connection,
                request,
                ListTransactionsResponse,
                check=lambda answer: check_code(answer.error_code, f"Broker {node_id}"),
            )
            if response.unknown_state_filters:
                raise ValueError(
                    f"broker {node_id} knows no state {', '.join(map(shown, response.unknown_state_filters))}"
                )
            return [
                TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
                for row in response.transaction_states
            ]

        what = "Listing transactions"
        listed, errors = await self._at_every_broker(ask, timeout=timeout, what=what)
        found = {row.transactional_id: row for rows in listed.values() for row in rows}
        return Listing(what, (found[name] for name in sorted(found)), errors)

    async def describe_transactions(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """The state of transactional ids: their producer, and the partitions of the present transaction (KIP-664).

        Raises:
            TransactionalIdNotFoundError: there is no such id.
            TransactionalIdAuthorizationError: it may not be described.
            PartialFailureError: several of them cannot be described.
            TypeError: the ids are not a list of strings.
        """
        described: dict[str, TransactionDescription] = {}

        async def describe(transactional_id: str) -> None:
            described[transactional_id] = await self._describe_transaction(transactional_id, timeout)

        names = as_names(transactional_ids, "transactional ids")
        await self._each_named(names, describe, "Describing transactions", described)
        return {name: described[name] for name in dict.fromkeys(names)}

    async def _describe_transaction(self, transactional_id: str, timeout: float | None) -> TransactionDescription:
        subject = f"Transactional id {shown(transactional_id)}"

        def state(answer: DescribeTransactionsResponse) -> DescribeTransactionsResponseTransactionState:
            return row_of(answer.transaction_states, lambda row: row.transactional_id == transactional_id, subject)

        async def ask(trial: Trial, connection: Connection, coordinator: Node) -> TransactionDescription:
            response = await self._exchange(
                trial,
                connection,
                DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                DescribeTransactionsResponse,
                check=lambda answer: check_retriable(state(answer).error_code, subject),
            )
            row = state(response)
            check_code(row.error_code, subject)
            return TransactionDescription(
                transactional_id,
                coordinator,
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                row.transaction_timeout_ms,
                row.transaction_start_time_ms if row.transaction_start_time_ms >= 0 else None,
                frozenset(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions),
            )

        return await self._at_coordinator(
            transactional_id, ask, timeout=timeout, what=f"Describing {subject}", key_type=TRANSACTION
        )

    async def describe_producers(
        self, partitions: Iterable[Partition], *, broker_id: int | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """The producers that partitions remember, and where their open transactions begin (KIP-664).

        Args:
            partitions: which.
            broker_id: the broker to ask, a follower say; the default is each partition's leader.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            UnknownTopicOrPartitionError: there is no such partition.
            NotLeaderOrFollowerError: the broker that was named does not have it.
            BrokerIdNotRegisteredError: there is no broker of this id.
            PartialFailureError: several partitions failed.
            TypeError: these are not partitions.
        """
        wanted = as_partitions(partitions)
        what = "Describing producers"

        async def ask(
            trial: Trial, connection: Connection, some: Collection[TopicPartition]
        ) -> dict[TopicPartition, tuple[int, tuple[ActiveProducer, ...]]]:
            topics: dict[str, list[int]] = defaultdict(list)
            for topic, number in some:
                topics[topic].append(number)
            request = DescribeProducersRequest(
                topics=[
                    DescribeProducersRequestTopicRequest(name=name, partition_indexes=numbers)
                    for name, numbers in topics.items()
                ]
            )
            response = await self._exchange(trial, connection, request, DescribeProducersResponse)
            return {
                TopicPartition(topic.name, row.partition_index): (
                    row.error_code,
                    tuple(
                        ActiveProducer(
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.last_sequence,
                            producer.last_timestamp,
                            producer.coordinator_epoch if producer.coordinator_epoch >= 0 else None,
                            producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None,
                        )
                        for producer in row.active_producers
                    ),
                )
                for topic in response.topics
                for row in topic.partitions
            }

        if broker_id is None:
            return await self._at_leaders(wanted, ask, timeout=timeout, what=what)
        node_id = as_broker_id(broker_id)

        async def ask_one(trial: Trial) -> dict[TopicPartition, tuple[int, tuple[ActiveProducer, ...]]]:
            return await ask(trial, await self._at_broker(node_id, trial), wanted)

        told = await self._retrying(ask_one, timeout, what)
        failures = {str(tp): failure(told[tp][0], str(tp)) for tp in wanted if tp in told}
        refused = {name: error for name, error in failures.items() if error is not None}
        found = {tp: told[tp][1] for tp in wanted if tp in told and str(tp) not in refused}
        raise_failures(what, {**refused, **left_out(wanted, told)}, found)
        return found

    async def abort_transaction(self, spec: AbortTransactionSpec, *, timeout: float | None = None) -> None:
        """Ends an open transaction of one partition by a marker that aborts it, past any coordinator (KIP-664).

        For transactions that hang, see `find_hanging_transactions`: of one that its coordinator still knows, other
        partitions may get committed.

        Raises:
            InvalidProducerEpochError: the producer has a newer epoch.
            TransactionCoordinatorFencedError: a newer coordinator has ended a transaction of the producer here.
            ClusterAuthorizationError: this user may not.
            UnknownTopicOrPartitionError: there is no such partition.
            TypeError: it is no `AbortTransactionSpec`.
        """
        checked = as_abort_spec(spec)
        tp = checked.topic_partition

        async def ask(
            trial: Trial, connection: Connection, some: Collection[TopicPartition]
        ) -> Mapping[TopicPartition, tuple[int, None]]:
            marker = WritableTxnMarker(
                producer_id=checked.producer_id,
                producer_epoch=checked.producer_epoch,
                transaction_result=False,
                topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
                coordinator_epoch=checked.coordinator_epoch,
            )
            response = await self._exchange(
                trial, connection, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse
            )
            return {
                TopicPartition(topic.name, row.partition_index): (row.error_code, None)
                for written in response.markers
                for topic in written.topics
                for row in topic.partitions
            }

        await self._at_leaders([tp], ask, timeout=timeout, what=f"Aborting a transaction in {tp}")

    async def find_hanging_transactions(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
        timeout: float | None = None,
    ) -> list[HangingTransaction]:
        """Open transactions that no coordinator knows (any more), as Kafka's own tool finds them (KIP-664).

        `abort_transaction(AbortTransactionSpec.of(*hanging[:2]))` ends one.

        Args:
            partitions: where to look; None for all partitions of the cluster, those of internal topics too.
            max_transaction_timeout_ms: only transactions whose last record is older than so many milliseconds: younger
                ones may be about to be ended. As `transaction.max.timeout.ms` of the brokers.
            timeout: seconds for all of it; the default is `default.api.timeout.ms`.

        Raises:
            TypeError: these are not partitions.
            ValueError: the number cannot be.
        """
        patience = as_duration(max_transaction_timeout_ms, "max_transaction_timeout_ms")
        wanted = None if partitions is None else as_partitions(partitions)
        with self._steps(timeout, "Finding hanging transactions") as left:
            if wanted is None:
                told = await self._every_producer(left)
            else:
                told = await self.describe_producers(wanted, timeout=left())
            began_before = time.time() * 1000 - patience
            open_ones = [
                (tp, producer)
                for tp, producers in told.items()
                for producer in producers
                if producer.transaction_start_offset is not None and producer.last_timestamp < began_before
            ]
            if not open_ones:
                return []
            producer_ids = {producer.producer_id for _, producer in open_ones}
            # one whose coordinator did not answer would pass for one that nobody knows
            listed = (await self.list_transactions(producer_ids=producer_ids, timeout=left())).complete()
            ids = {row.producer_id: row.transactional_id for row in listed}
            joined = {name: await self._joined(name, left()) for name in ids.values()}
        found = []
        for tp, producer in open_ones:
            name = ids.get(producer.producer_id)
            if name is None or tp not in joined[name]:
                found.append(HangingTransaction(tp, producer, name))
        return sorted(found, key=lambda one: (one.topic_partition, one.producer.producer_id))

    async def _every_producer(self, left: Callable[[], float]) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """Those of all partitions; of topics that are deleted meanwhile there are none."""
        while True:
            listed = await self._all_topics(left(), "Listing partitions")
            every = [
                TopicPartition(topic.name or "", row.partition_index)
                for topic in listed.topics
                for row in topic.partitions
            ]
            try:
                return await self.describe_producers(every, timeout=left())
            except UnknownTopicOrPartitionError:
                continue
            except PartialFailureError as error:
                if any(not isinstance(one, UnknownTopicOrPartitionError) for one in error.failures.values()):
                    raise

    async def _joined(self, transactional_id: str, timeout: float) -> Collection[TopicPartition]:
        """What is in the present transaction of an id; nothing where it was forgotten meanwhile."""
        try:
            return (await self._describe_transaction(transactional_id, timeout)).topic_partitions
        except TransactionalIdNotFoundError:
            return ()

    async def fence_producers(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> dict[str, FencedProducer]:
        """Shuts out all producers that use these transactional ids now; their open transactions are aborted (KIP-664).

        Raises:
            TransactionalIdAuthorizationError: this user may not use the id.
            PartialFailureError: several of them failed; the others are fenced.
            TypeError: the ids are not a list of strings.
        """
        fenced: dict[str, FencedProducer] = {}

        async def fence(transactional_id: str) -> None:
            subject = f"Transactional id {shown(transactional_id)}"

            async def ask(trial: Trial, connection: Connection, coordinator: Node) -> FencedProducer:
                answer = await self._exchange(
                    trial,
                    connection,
                    InitProducerIdRequest(
                        transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS
                    ),
                    InitProducerIdResponse,
                    check=lambda answer: check_code(answer.error_code, subject),
                )
                return FencedProducer(answer.producer_id, answer.producer_epoch)

            fenced[transactional_id] = await self._at_coordinator(
                transactional_id, ask, timeout=timeout, what=f"Fencing producers of {subject}", key_type=TRANSACTION
            )

        names = as_names(transactional_ids, "transactional ids")
        await self._each_named(names, fence, "Fencing producers", fenced)
        return {name: fenced[name] for name in dict.fromkeys(names)}

    async def force_terminate_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Aborts the open transaction of a transactional id, also a prepared one (KIP-939); fences its producers.

        Raises:
            TransactionalIdAuthorizationError: this user may not use the id.
            TypeError: the id is not text.
            ValueError: it is empty, or cannot be sent.
        """
        if not isinstance(transactional_id, str):
            raise TypeError(f"a transactional id is text, not {shown(transactional_id)}")
        await self.fence_producers([transactional_id], timeout=timeout)
