"""The requests of a group member whose partitions the broker assigns (KIP-848), and what it has told the broker."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.consumer.group.model import GroupRequest, RequestKind
from kclient.errors import UnsupportedVersionError
from kclient.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.consumer.group.model import MemberSettings
    from kclient.protocol.message import ApiMessage

JOINS = 0
"""Epoch of a member that joins."""
LEAVES = -1
"""Epoch of a member that leaves for good."""
RESTS = -2
"""Epoch of a static member that leaves for a while: its partitions wait for it until the session is over."""

_FIRST_WITH_PATTERNS = 1


@dataclass(frozen=True, slots=True)
class Interest:
    """What a member subscribes to."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    """Evaluated by the broker; None without one."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a heartbeat tells of a member; it says only what the broker has not been told."""

    interest: Interest
    owned: frozenset[tuple[bytes, int]]
    """The partitions that it reads, as topic ids and numbers."""
    turn: int
    """How many assignments it has carried out: the broker is told of each that it is done, whatever that changed."""


class RemoteRequests:
    """Makes the requests of one member."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings

    def heartbeat(self, node: int, member_id: str, epoch: int, report: Report, told: Report | None) -> GroupRequest:
        """Still there, and what has changed since.

        Args:
            node: The coordinator's id.
            member_id: Who it is.
            epoch: The member's epoch, or `JOINS`.
            report: How things are.
            told: What the broker knows of that; None if nothing is certain.
        """
        settings = self._settings

        def build(version: int) -> ConsumerGroupHeartbeatRequest:
            request = self._plain(member_id, epoch)
            interest, known = report.interest, None if told is None else told.interest
            if told is None:
                request.rebalance_timeout_ms = round(settings.max_poll_interval * 1000)
                request.server_assignor = settings.remote_assignor
                request.rack_id = settings.client_rack
            if known is None or known.topics != interest.topics:
                request.subscribed_topic_names = sorted(interest.topics)
            if interest.pattern is not None and version < _FIRST_WITH_PATTERNS:
                raise UnsupportedVersionError(
                    "The broker evaluates no SubscriptionPattern (ConsumerGroupHeartbeat v1, Kafka 4.0): subscribe to "
                    "a compiled pattern (re.compile), which the client evaluates"
                )
            before = None if known is None else known.pattern
            if interest.pattern != before:
                request.subscribed_topic_regex = interest.pattern or ""
            elif known is None and settings.group_instance_id is not None and version >= _FIRST_WITH_PATTERNS:
                request.subscribed_topic_regex = ""  # whoever had this name before may have subscribed to a pattern
            if told is None or (told.owned, told.turn) != (report.owned, report.turn):
                request.topic_partitions = _by_topic(report.owned)
            return request

        return self._request(RequestKind.CONSUMER_HEARTBEAT, node, ConsumerGroupHeartbeatRequest, build)

    def leave(self, node: int, member_id: str, epoch: int) -> GroupRequest:
        """Leave, so that the others need not wait for the session to end.

        Args:
            node: The coordinator's id.
            member_id: Who leaves.
            epoch: `LEAVES` or `RESTS`.
        """
        return self._request(
            RequestKind.LEAVE, node, ConsumerGroupHeartbeatRequest, lambda _: self._plain(member_id, epoch)
        )

    def _plain(self, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
        settings = self._settings
        return ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=settings.group_instance_id,
        )

    def _request(
        self,
        kind: RequestKind,
        node: int | None,
        request_class: type[ApiMessage],
        build: Callable[[int], ApiMessage],
    ) -> GroupRequest:
        return GroupRequest(kind, node, request_class, build, self._settings.request_timeout)


def _by_topic(owned: Iterable[tuple[bytes, int]]) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
    topics: dict[bytes, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(owned):
        topics[topic_id].append(partition)
    return [
        ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=found)
        for topic_id, found in topics.items()
    ]
