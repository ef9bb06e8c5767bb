"""The share session with one broker, as a state machine free of I/O and clocks (KIP-932).

The broker keeps which partitions are fetched and which records it holds for the member; each request tells what has
changed, under an epoch that grows by one. So there is one request at a time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kclient.consumer.share.acquired import batches_of
from kclient.consumer.share.states import SHARE_SESSION_TABLE, ShareSessionEvent, ShareSessionState
from kclient.protocol.messages import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestBatch,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestForgottenTopic,
    ShareFetchRequestPartition,
    ShareFetchRequestTopic,
)
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kclient.consumer.share.acquired import Acknowledgement
    from kclient.consumer.share.model import ShareFetchSettings, SharePartition

_BEGINS = 0
"""Epoch of the fetch that begins a session."""
_ENDS = -1
"""Epoch of the request that ends it."""
_LAST_EPOCH = 2**31 - 1
_MODES = {False: 0, True: 1}
"""`share.acquire.mode` on the wire: batch_optimized, record_limit."""


@dataclass(frozen=True, slots=True, eq=False)
class ShareRequest:
    """A request to a broker; its answer goes to `ShareSessions.received`, an error to `failed`."""

    node_id: int
    message: ShareFetchRequest | ShareAcknowledgeRequest
    partitions: frozenset[SharePartition]
    """What is fetched."""
    told: list[Acknowledgement] = field(default_factory=list)
    """What it acknowledges."""
    first_version: int = 1
    """The version that has what it asks for."""

    @property
    def fetches(self) -> bool:
        """Whether it asks for records."""
        return isinstance(self.message, ShareFetchRequest)

    @property
    def ends(self) -> bool:
        """Whether it ends the session."""
        return self.message.share_session_epoch == _ENDS


class ShareSession:
    """The session with one broker.

    Args:
        node_id: The broker.
        settings: How to fetch.
    """

    def __init__(self, node_id: int, settings: ShareFetchSettings) -> None:
        self.node_id: int = node_id
        self.state: ShareSessionState = ShareSessionState.NEW
        self.number: int = 0
        """Grows whenever the session is over: what the broker held in an earlier one, it has given back."""
        self.waiting: list[Acknowledgement] = []
        """What is to be told, in the order in which it was said."""
        self.request: ShareRequest | None = None
        """The one that is under way."""
        self.retry_at: float = 0.0
        """Nothing is fetched before."""
        self.failures: int = 0
        self.served: int = 0
        """When it was last asked for records, counted in such requests."""
        self.overdue_at: float = 0.0
        """When the fetch under way should have been answered."""
        self.asked_at: float = 0.0
        """When the request under way was planned."""
        self._settings = settings
        self._epoch = _BEGINS
        self._partitions: frozenset[SharePartition] = frozenset()
        """What the broker knows of."""

    # ------------------------------------------------------------------ requests

    def fetch(self, member_id: str, wanted: frozenset[SharePartition], told: list[Acknowledgement]) -> ShareRequest:
        """Ask for records.

        Args:
            member_id: Who asks.
            wanted: The partitions that this broker leads.
            told: What to acknowledge as well; nothing in the first request of a session, and no renewals.
        """
        settings = self._settings
        topics: dict[bytes, dict[int, list[ShareFetchRequestAcknowledgementBatch]]] = defaultdict(dict)
        for partition in sorted(wanted - self._partitions):
            topics[partition.topic_id][partition.partition] = []
        for partition, batches in _batches(told):
            topics[partition.topic_id][partition.partition] = [
                ShareFetchRequestAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=kinds)
                for first, last, kinds in batches
            ]
        message = ShareFetchRequest(
            group_id=settings.group_id,
            member_id=member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            max_records=settings.max_records,
            batch_size=settings.max_records,
            share_acquire_mode=_MODES[settings.record_limit],
            is_renew_ack=False,
            topics=[
                ShareFetchRequestTopic(
                    topic_id=topic_id,
                    partitions=[
                        ShareFetchRequestPartition(partition_index=number, acknowledgement_batches=batches)
                        for number, batches in sorted(numbers.items())
                    ],
                )
                for topic_id, numbers in topics.items()
            ],
            forgotten_topics_data=_forgotten(self._partitions - wanted),
        )
        self.request = ShareRequest(self.node_id, message, wanted, told, 2 if settings.record_limit else 1)
        return self.request

    def acknowledge(self, member_id: str, told: list[Acknowledgement], *, last: bool = False) -> ShareRequest:
        """Tell what became of records.

        Args:
            member_id: Who tells.
            told: What.
            last: Whether the session ends with it, and the broker gives back what it still holds.
        """
        topics: dict[bytes, list[AcknowledgePartition]] = defaultdict(list)
        for partition, batches in _batches(told):
            topics[partition.topic_id].append(
                AcknowledgePartition(
                    partition_index=partition.partition,
                    acknowledgement_batches=[
                        ShareAcknowledgeRequestBatch(
                            first_offset=first, last_offset=last_offset, acknowledge_types=kinds
                        )
                        for first, last_offset, kinds in batches
                    ],
                )
            )
        renews = any(one.renews for one in told)
        message = ShareAcknowledgeRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            share_session_epoch=_ENDS if last else self._epoch,
            is_renew_ack=renews,
            topics=[AcknowledgeTopic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
        )
        if last:
            self._go(ShareSessionEvent.ENDS)
        self.request = ShareRequest(self.node_id, message, self._partitions, told, 2 if renews else 1)
        return self.request

    # ------------------------------------------------------------------ answers

    @property
    def is_open(self) -> bool:
        """Whether the broker holds records for this member, as far as that is known."""
        return self.state is ShareSessionState.OPEN

    def succeeded(self, request: ShareRequest) -> None:
        """The broker has taken a request; what it says of single partitions is another matter."""
        self.request = None
        self.failures = 0
        self.retry_at = 0.0
        if request.ends:
            self._end(ShareSessionEvent.ENDED)
            return
        if self.state is ShareSessionState.NEW:
            self._go(ShareSessionEvent.OPENED)
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        if request.fetches:
            self._partitions = request.partitions

    def hold_back(self, failures: int, retry_at: float) -> None:
        """The broker has refused all partitions, so many times in a row: none is fetched before `retry_at`."""
        self.failures = failures
        self.retry_at = retry_at

    def lose(self, retry_at: float) -> None:
        """The broker has no such session, or it is not certain that it has."""
        self.request = None
        self.failures += 1
        self.retry_at = retry_at
        self._end(ShareSessionEvent.LOST)

    def _end(self, event: ShareSessionEvent) -> None:
        self._go(event)
        self.number += 1
        self._epoch = _BEGINS
        self._partitions = frozenset()

    def _go(self, event: ShareSessionEvent) -> None:
        self.state = next_state(SHARE_SESSION_TABLE, self.state, event, f"share session with node {self.node_id}")


def _batches(
    told: Iterable[Acknowledgement],
) -> list[tuple[SharePartition, list[tuple[int, int, list[int]]]]]:
    """What is said by partition, each once, as requests say it."""
    kinds: dict[SharePartition, dict[int, int]] = defaultdict(dict)
    for one in told:
        kinds[one.acquired.partition].update(one.kinds)
    return [(partition, batches_of(dict(sorted(found.items())))) for partition, found in sorted(kinds.items())]


def _forgotten(partitions: Collection[SharePartition]) -> list[ShareFetchRequestForgottenTopic]:
    topics: dict[bytes, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic_id].append(partition.partition)
    return [ShareFetchRequestForgottenTopic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()]
