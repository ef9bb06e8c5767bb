"""The requests that gateways send to one another: which they are, how much goes into one, what answers mean."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kclient.errors import ErrorCode
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.peer_calls.names import named_group, named_id, wire_group, wire_name
from kclient.gateway.peers import EndOfTransaction, TransactionOf
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kclient.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kclient.protocol.registry import ApiKey

W_contra = TypeVar("W_contra", contravariant=True)
K = TypeVar("K", bound=Hashable)

Partitions = Collection[PartitionId]
Codes = dict[PartitionId, int]
"""Kafka's error code for each partition."""
_PARTITION: Final = 48
"""Bytes of a partition in a request, at most: its topic's id, and its number."""


_END: Final = -1
"""The timestamp by which ListOffsets asks for the high watermark."""


class ToVerify(NamedTuple):
    """What the coordinator of a transaction is asked."""

    transaction: TransactionOf
    add: bool


class ToJoin(NamedTuple):
    """The group that a transaction's coordinator is to add."""

    transaction: TransactionOf
    group_id: str


class PeerRequest(Protocol[W_contra, K]):
    """A request of many calls, each about partitions or groups: its items."""

    api: ApiKey
    version: int
    """The only one that is spoken: a gateway that does not know it is an earlier one."""
    timeout_s: float
    """Seconds after which a gateway that has not answered is given up, with the connection."""
    unanswered: int
    """The code of an item of which an answer says nothing: it can be tried again."""
    item_size: int
    """Bytes that an item takes in a request, at most."""

    def size(self, what: W_contra) -> int:
        """Bytes that a call takes in a request beside its items, at most."""
        ...

    def request(self, calls: Sequence[tuple[W_contra, Collection[K]]]) -> ApiMessage:
        """The request."""
        ...

    def answers(self, response: Any) -> tuple[int, Iterator[dict[K, int]]]:
        """The code of the whole, and those of the calls in their order."""
        ...


class Verify:
    """AddPartitionsToTxn of brokers: are partitions in transactions, or are they to join?"""

    api: ApiKey = ApiKey.ADD_PARTITIONS_TO_TXN
    version: int = 5
    timeout_s: float = 10.0
    unanswered: int = ErrorCode.COORDINATOR_NOT_AVAILABLE
    item_size: int = _PARTITION

    def size(self, what: ToVerify) -> int:
        """The transactional id is the most of it."""
        return 64 + 4 * len(what.transaction.transactional_id)

    def request(self, calls: Sequence[tuple[ToVerify, Partitions]]) -> AddPartitionsToTxnRequest:
        """A transaction for each call; one may be named more than once."""
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=what.transaction.transactional_id,
                    producer_id=what.transaction.producer_id,
                    producer_epoch=what.transaction.producer_epoch,
                    verify_only=not what.add,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in _topics(partitions)
                    ],
                )
                for what, partitions in calls
            ]
        )

    def answers(self, response: Any) -> tuple[int, Iterator[Codes]]:
        """In the order of the request."""
        return response.error_code, (
            _codes(
                (topic.name, row.partition_index, row.partition_error_code)
                for topic in result.topic_results
                for row in topic.results_by_partition
            )
            for result in response.results_by_transaction
        )


class JoinGroups:
    """AddPartitionsToTxn of brokers, too: groups are to join, where Kafka has partitions of `__consumer_offsets`."""

    api: ApiKey = ApiKey.ADD_PARTITIONS_TO_TXN
    version: int = 5
    timeout_s: float = 10.0
    unanswered: int = ErrorCode.COORDINATOR_NOT_AVAILABLE
    item_size: int = 16

    def size(self, what: ToJoin) -> int:
        """Both ids."""
        return 64 + 4 * (len(what.transaction.transactional_id) + len(what.group_id))

    def request(self, calls: Sequence[tuple[ToJoin, Collection[str]]]) -> AddPartitionsToTxnRequest:
        """A transaction for each call; one may be named more than once."""
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=what.transaction.transactional_id,
                    producer_id=what.transaction.producer_id,
                    producer_epoch=what.transaction.producer_epoch,
                    verify_only=False,
                    topics=[AddPartitionsToTxnTopic(name=wire_group(each), partitions=[0]) for each in groups],
                )
                for what, groups in calls
            ]
        )

    def answers(self, response: Any) -> tuple[int, Iterator[dict[str, int]]]:
        """In the order of the request."""
        return response.error_code, (
            {
                group_id: row.partition_error_code
                for topic in result.topic_results
                for row in topic.results_by_partition
                if (group_id := named_group(topic.name)) is not None
            }
            for result in response.results_by_transaction
        )


class WriteEnds:
    """WriteTxnMarkers, which says whether an end has a greater epoch since version 2 (KIP-1228)."""

    api: ApiKey = ApiKey.WRITE_TXN_MARKERS
    version: int = 2
    timeout_s: float = 15.0
    """More than the other waits for its store (`peers.LocalPeers`)."""
    unanswered: int = ErrorCode.REQUEST_TIMED_OUT
    item_size: int = _PARTITION

    def size(self, what: EndOfTransaction) -> int:
        """Numbers only."""
        return 64

    def request(self, calls: Sequence[tuple[EndOfTransaction, Partitions]]) -> WriteTxnMarkersRequest:
        """A marker for each call."""
        return WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=what.producer_id,
                    producer_epoch=what.producer_epoch,
                    transaction_result=what.marker.committed,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
                        for name, numbers in _topics(partitions)
                    ],
                    coordinator_epoch=what.marker.coordinator_epoch,
                    transaction_version=what.transaction_version,
                )
                for what, partitions in calls
            ]
        )

    def answers(self, response: Any) -> tuple[int, Iterator[Codes]]:
        """In the order of the request."""
        return ErrorCode.NONE, (
            _codes(
                (topic.name, row.partition_index, row.error_code) for topic in result.topics for row in topic.partitions
            )
            for result in response.markers
        )


class Tell:
    """WriteTxnMarkers, too: a transaction of groups is completed; Kafka names partitions of `__consumer_offsets`."""

    api: ApiKey = ApiKey.WRITE_TXN_MARKERS
    version: int = 2
    timeout_s: float = 15.0
    unanswered: int = ErrorCode.NONE
    item_size: int = 16

    def size(self, what: str) -> int:
        """The group's id."""
        return 32 + 4 * len(what)

    def request(self, calls: Sequence[tuple[str, Collection[str]]]) -> WriteTxnMarkersRequest:
        """One marker that is of no producer."""
        topics = [
            WritableTxnMarkerTopic(name=wire_group(each), partition_indexes=[0])
            for each in dict.fromkeys(chain.from_iterable(groups for _, groups in calls))
        ]
        return WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=-1, producer_epoch=-1, topics=topics)])

    def answers(self, response: Any) -> tuple[int, Iterator[dict[str, int]]]:
        """Nothing depends on them."""
        return ErrorCode.NONE, iter(())


class ListEnds:
    """ListOffsets: where do partitions end?"""

    api: ApiKey = ApiKey.LIST_OFFSETS
    version: int = 4
    timeout_s: float = 15.0
    """More than the other waits for its store (`peers.LocalPeers`)."""
    unanswered: int = -1
    item_size: int = _PARTITION

    def size(self, what: None) -> int:
        """Nothing beside the partitions."""
        return 0

    def request(self, calls: Sequence[tuple[None, Partitions]]) -> ListOffsetsRequest:
        """All calls in one."""
        wanted = dict.fromkeys(chain.from_iterable(partitions for _, partitions in calls))
        return ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[ListOffsetsPartition(partition_index=number, timestamp=_END) for number in numbers],
                )
                for name, numbers in _topics(wanted)
            ],
        )

    def answers(self, response: Any) -> tuple[int, Iterator[Codes]]:
        """The same for each call: the ends, in place of codes."""
        ends = _codes(
            (topic.name, row.partition_index, -1 if row.error_code else row.offset)
            for topic in response.topics
            for row in topic.partitions
        )
        return ErrorCode.NONE, repeat(ends)


VERIFY: Final = Verify()
LIST_ENDS: Final = ListEnds()
JOIN: Final = JoinGroups()
WRITE_ENDS: Final = WriteEnds()
TELL: Final = Tell()


def _topics(partitions: Partitions) -> Iterator[tuple[str, list[int]]]:
    by_topic: dict[bytes, list[int]] = {}
    for each in partitions:
        by_topic.setdefault(each.topic_id, []).append(each.partition)
    for topic_id, numbers in by_topic.items():
        yield wire_name(topic_id), numbers


def _codes(rows: Iterable[tuple[str, int, int]]) -> Codes:
    found: Codes = {}
    for name, number, code in rows:
        topic_id = named_id(name)
        if topic_id is not None:
            found[PartitionId(topic_id, number)] = code
    return found
