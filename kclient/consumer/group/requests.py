"""The requests of a group member, and the leader's work of assigning partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.consumer.group.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kclient.consumer.group.model import ConsumerGroupMetadata, GroupRequest, MemberSettings, RacksOf, RequestKind
from kclient.errors import KafkaError
from kclient.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kclient.consumer.group.assignors import Assignor, Subscription
    from kclient.protocol.message import ApiMessage
    from kclient.types import TopicPartition

_LONGEST_REASON = 255
_JOIN_GRACE = 5.0
"""Seconds that a JoinGroup is waited for beyond the time members have to rejoin, as in the Java client."""


class GroupRequests:
    """Makes the requests of one member."""

    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor]) -> None:
        self._settings = settings
        self._assignors = assignors

    def join(
        self,
        node: int,
        member: ConsumerGroupMetadata,
        topics: Collection[str],
        owned: Sequence[TopicPartition],
        reason: str,
    ) -> GroupRequest:
        """Join or rejoin; the answer comes when every member has.

        Raises:
            KafkaError: An assignor failed.
        """
        settings = self._settings
        protocols = [
            JoinGroupRequestProtocol(
                name=assignor.name, metadata=_subscription(assignor, topics, owned, member, settings.client_rack)
            )
            for assignor in self._assignors
        ]

        def build(version: int) -> JoinGroupRequest:
            return JoinGroupRequest(
                group_id=settings.group_id,
                session_timeout_ms=round(settings.session_timeout * 1000),
                rebalance_timeout_ms=round(settings.max_poll_interval * 1000),
                member_id=member.member_id,
                group_instance_id=settings.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=protocols,
                reason=reason[:_LONGEST_REASON] if version >= 8 else None,
            )

        timeout = max(settings.request_timeout, settings.max_poll_interval + _JOIN_GRACE)
        return self._request(RequestKind.JOIN, node, JoinGroupRequest, build, timeout, parks=True)

    def sync(
        self, node: int, member: ConsumerGroupMetadata, protocol: str, assignments: Mapping[str, bytes]
    ) -> GroupRequest:
        """Ask for the assignment; the leader brings everybody's."""

        def build(version: int) -> SyncGroupRequest:
            return SyncGroupRequest(
                group_id=member.group_id,
                generation_id=member.generation_id,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                protocol_type=PROTOCOL_TYPE if version >= 5 else None,
                protocol_name=protocol if version >= 5 else None,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                    for member_id, data in assignments.items()
                ],
            )

        timeout = max(self._settings.request_timeout, self._settings.max_poll_interval + _JOIN_GRACE)
        return self._request(RequestKind.SYNC, node, SyncGroupRequest, build, timeout, parks=True)

    def heartbeat(self, node: int, member: ConsumerGroupMetadata) -> GroupRequest:
        """Still there."""

        def build(version: int) -> HeartbeatRequest:
            return HeartbeatRequest(
                group_id=member.group_id,
                generation_id=member.generation_id,
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
            )

        # an answer that takes longer than the session is worth nothing
        timeout = min(self._settings.request_timeout, self._settings.session_timeout)
        return self._request(RequestKind.HEARTBEAT, node, HeartbeatRequest, build, timeout)

    def leave(self, node: int, member: ConsumerGroupMetadata, reason: str) -> GroupRequest:
        """Leave, so that the others need not wait for the session to end."""

        def build(version: int) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest(group_id=member.group_id, member_id=member.member_id)
            identity = LeaveGroupRequestMember(member_id=member.member_id, group_instance_id=member.group_instance_id)
            if version >= 5:
                identity.reason = reason[:_LONGEST_REASON]
            return LeaveGroupRequest(group_id=member.group_id, members=[identity])

        return self._request(RequestKind.LEAVE, node, LeaveGroupRequest, build)

    def _request(
        self,
        kind: RequestKind,
        node: int | None,
        request_class: type[ApiMessage],
        build: Callable[[int], ApiMessage],
        timeout: float | None = None,
        *,
        parks: bool = False,
    ) -> GroupRequest:
        seconds = self._settings.request_timeout if timeout is None else timeout
        return GroupRequest(kind, node, request_class, build, seconds, parks)


def _subscription(
    assignor: Assignor,
    topics: Collection[str],
    owned: Sequence[TopicPartition],
    member: ConsumerGroupMetadata,
    rack: str | None,
) -> bytes:
    try:
        user_data = assignor.subscription_user_data(topics)
        return encode_subscription(sorted(topics), user_data, owned, member.generation_id, rack)
    except KafkaError:
        raise
    except Exception as error:  # the user's code, or what it returned
        raise _assignor_failed(assignor, error) from error


def _assignor_failed(assignor: Assignor, error: Exception) -> KafkaError:
    return KafkaError(f"The assignor {assignor.name!r} of partition.assignment.strategy failed: {error!r}")


def read_subscriptions(members: Iterable[Any]) -> dict[str, Subscription]:
    """The subscriptions of the members in an answer to JoinGroup, by member id."""
    return {
        member.member_id: decode_subscription(member.metadata, getattr(member, "group_instance_id", None))
        for member in members
    }


def assign_members(
    assignor: Assignor,
    members: Mapping[str, Subscription],
    counts: Mapping[str, int],
    racks: RacksOf,
) -> dict[str, bytes]:
    """Run the assignor as the group's leader; the encoded assignment of every member.

    `racks`: where the replicas of each partition of a topic are.

    Raises:
        KafkaError: The assignor failed.
    """
    try:
        if any(member.rack_id for member in members.values()):
            assigned = assignor.assign_by_racks(counts, members, {topic: racks(topic) for topic in counts})
        else:
            assigned = assignor.assign(counts, members)
        return {
            member: encode_assignment(assigned.get(member, ()), assignor.assignment_user_data(member))
            for member in members
        }
    except KafkaError:
        raise
    except Exception as error:
        raise _assignor_failed(assignor, error) from error
