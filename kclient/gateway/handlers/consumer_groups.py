"""Groups whose partitions the coordinator assigns (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    InvalidRequestError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from kclient.gateway.error_codes import Role, text_of
from kclient.gateway.features import GROUP_VERSION
from kclient.gateway.groups.assignors.table import ASSIGNORS
from kclient.gateway.groups.consumers.group import MOST_TOPICS, AssignedGroup
from kclient.gateway.groups.consumers.member import AWAY, JOINING, LEAVING
from kclient.gateway.groups.events import Beat, BeatResult
from kclient.gateway.groups.heartbeats import group_of_type
from kclient.gateway.groups.replies import when_done
from kclient.gateway.handlers._describing import GroupDescribeHandler
from kclient.gateway.handlers._members import check_read, names_of_topics, rows_of_topics
from kclient.gateway.handlers._work import FEW, Work, rows_for, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.rows.consumer_groups import CONSUMER
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.features import Features
    from kclient.gateway.groups.consumers.member import ConsumerMember
    from kclient.gateway.groups.consumers.membership import AssignedMembership
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.topics.table import TopicTable

_OWN_IDS: Final = 1
"""Members choose their own ids from this version of ConsumerGroupHeartbeat on (KIP-1082)."""
_CLASSIC_PROTOCOL: Final = 0
_CONSUMER_PROTOCOL: Final = 1
"""What ConsumerGroupDescribe calls members of these protocols."""
_LONGEST_NAME: Final = 249
"""Characters that the name of a topic may have."""
_SLICE: Final = 4_096
"""So many partitions are looked at before others have their turn."""
_PER_TOPIC, _PER_PARTITION = 500, 80
"""About how many bytes of memory a topic and a partition take that a member says it has."""


class ConsumerGroupHeartbeatHandler(Handler):
    """Takes members into groups, keeps them there, and tells them what they may read."""

    API: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_HEARTBEAT
    VERSIONS: ClassVar[VersionRange] = (0, 1)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: AssignedMembership, features: Features) -> None:
        self._access = access
        self._groups = groups
        self._features = features

    def begin(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Begun:
        """Note that the member lives; the answer waits until what is new in it is stored."""
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        if not self._features.levels.get(GROUP_VERSION):
            raise UnsupportedVersionError(
                f"the feature {GROUP_VERSION} is off: raise it to 1, or set group.protocol=classic"
            )
        _check(request, context.api_version)
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Work:
        client, access = context.connection, self._access
        yield from check_read(request.subscribed_topic_names or (), access, client)
        owned = None
        if request.topic_partitions is not None:
            owned = yield from _owned(request.topic_partitions)
        allowed = partial(access.allowed, client, AclOperation.DESCRIBE, ResourceType.TOPIC)
        found = yield from self._groups.look_up(
            request.group_id, request.subscribed_topic_regex, allowed, rights=access.changes
        )
        parked = self._groups.heartbeat(request.group_id, _beat_of(request, context, owned), found)
        interval_ms = self._groups.heartbeat_interval_ms(request.group_id)
        return when_done(parked, lambda result: _response(result, interval_ms))


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Whether a request says what it has to. Raises as Kafka does, what is wrong first in its order."""
    epoch, joins = request.member_epoch, request.member_epoch == JOINING
    if not request.member_id and (version >= _OWN_IDS or not joins):
        raise InvalidRequestError("member_id is empty: a member has the id under which it has joined")
    for name in ("group_id", "instance_id", "rack_id"):
        if getattr(request, name) == "":
            raise InvalidRequestError(f"{name} is empty")
    if joins:
        if request.rebalance_timeout_ms == -1:
            raise InvalidRequestError("who joins has to say its rebalance_timeout_ms")
        if request.topic_partitions is None or request.topic_partitions:
            raise InvalidRequestError("who joins has no partitions yet: topic_partitions has to be empty")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise InvalidRequestError("who joins has to say what it reads, by names or by a pattern")
    elif epoch == AWAY:
        if request.instance_id is None:
            raise InvalidRequestError("only who has a group.instance.id can leave for a while")
    elif epoch < LEAVING:
        raise InvalidRequestError(f"there is no member epoch {epoch}")
    if len(request.subscribed_topic_names or ()) > MOST_TOPICS:
        raise InvalidRequestError(f"a member reads {MOST_TOPICS} topics by their names at most: subscribe by a pattern")
    if any(len(name) > _LONGEST_NAME for name in request.subscribed_topic_names or ()):
        raise InvalidRequestError(
            f"a name in subscribed_topic_names has more than the {_LONGEST_NAME} characters of one"
        )
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise UnsupportedAssignorError(
            f"there is no assignor {request.server_assignor[:300]}: set group.remote.assignor to one of "
            f"{', '.join(ASSIGNORS)}"
        )


def _owned(told: Sequence[ConsumerGroupHeartbeatRequestTopicPartitions]) -> Work:
    """The partitions that a member says it has, by topic id; it may name a topic in several places."""
    owned: dict[bytes, set[int]] = {}
    for count, each in enumerate(told, 1):
        numbers = owned.setdefault(each.topic_id, set())
        for start in range(0, len(each.partitions), _SLICE):
            some = each.partitions[start : start + _SLICE]
            numbers.update(some)
            if len(some) == _SLICE:
                yield _PER_PARTITION * _SLICE
        if count % FEW == 0:
            yield _PER_TOPIC * FEW
    return owned


def _beat_of(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, owned: Mapping[bytes, AbstractSet[int]] | None
) -> Beat:
    names = request.subscribed_topic_names
    return Beat(
        request.member_id or str(uuid.uuid4()),
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        context.client_id or "",
        context.connection.client_host,
        None if names is None else tuple(sorted(set(names))),
        request.subscribed_topic_regex,
        request.server_assignor,
        owned,
    )


def _response(result: BeatResult, interval_ms: int) -> ConsumerGroupHeartbeatResponse:
    response = ConsumerGroupHeartbeatResponse(
        error_code=result.error, error_message=None if result.message is None else text_of(result.message)
    )
    if result.error:
        return response
    response.member_id, response.member_epoch = result.member_id, result.epoch
    response.heartbeat_interval_ms = interval_ms if result.epoch > JOINING else 0
    if result.assigned is not None:
        response.assignment = ConsumerGroupHeartbeatResponseAssignment(
            topic_partitions=rows_for(
                result.assigned.items(),
                lambda each: ConsumerGroupHeartbeatResponseTopicPartitions(
                    topic_id=each[0], partitions=sorted(each[1])
                ),
            )
        )
    return response


class ConsumerGroupDescribeHandler(GroupDescribeHandler[ConsumerGroupDescribeResponseDescribedGroup, AssignedGroup]):
    """Shows consumer groups: their epochs, and what each member has and is to have."""

    API: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_DESCRIBE
    VERSIONS: ClassVar[VersionRange] = (0, 1)
    _ROW = ConsumerGroupDescribeResponseDescribedGroup
    _RESPONSE = ConsumerGroupDescribeResponse

    def __init__(self, access: Access, table: GroupTable, topics: TopicTable) -> None:
        super().__init__(access)
        self._table = table
        self._topics = topics

    def _find(self, group_id: str) -> AssignedGroup:
        return group_of_type(self._table, group_id, AssignedGroup, CONSUMER)[1]

    def _describe(
        self, group: AssignedGroup, row: ConsumerGroupDescribeResponseDescribedGroup, client: ConnectionContext
    ) -> Work:
        self._put_state(group, row)
        row.assignor_name = group.members.assignor
        members = list(group.members)
        names = yield from names_of_topics(members, self._access, self._topics, client)
        row.members = lazily(len(members), (_described(member, names) for member in members))


def _described(member: ConsumerMember, names: Mapping[bytes, str]) -> ConsumerGroupDescribeResponseMember:
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscription.topics),
        subscribed_topic_regex=member.subscription.pattern or None,
        assignment=_assignment(member.assigned, names),
        target_assignment=_assignment(member.target, names),
        member_type=_CLASSIC_PROTOCOL if member.classic is not None else _CONSUMER_PROTOCOL,
    )


def _assignment(
    partitions: Mapping[bytes, Collection[int]], names: Mapping[bytes, str]
) -> ConsumerGroupDescribeResponseAssignment:
    def topic(topic_id: bytes, name: str, numbers: Sequence[int]) -> ConsumerGroupDescribeResponseTopicPartitions:
        return ConsumerGroupDescribeResponseTopicPartitions(
            topic_id=topic_id, topic_name=name, partitions=list(numbers)
        )

    return ConsumerGroupDescribeResponseAssignment(topic_partitions=rows_of_topics(partitions, names, topic))
