"""Share groups (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from kclient.acls import AclOperation
from kclient.errors import InvalidRequestError, UnsupportedVersionError
from kclient.gateway.error_codes import Role, text_of
from kclient.gateway.features import SHARE_VERSION
from kclient.gateway.groups.assignors.simple import SIMPLE
from kclient.gateway.groups.consumers.group import MOST_TOPICS
from kclient.gateway.groups.consumers.member import JOINING, LEAVING
from kclient.gateway.groups.events import Beat, BeatResult
from kclient.gateway.groups.replies import when_done
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.groups.sharing.membership import shared_group
from kclient.gateway.handlers._describing import GroupDescribeHandler
from kclient.gateway.handlers._members import check_read, names_of_topics, rows_of_topics
from kclient.gateway.handlers._work import Work, rows_for, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.topics.names import MAX_NAME
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.share import (
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.features import Features
    from kclient.gateway.groups.consumers.member import ConsumerMember
    from kclient.gateway.groups.sharing.membership import SharedMembership
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.topics.table import TopicTable


def check_shares_are_on(features: Features) -> None:
    """Whether there are share groups. Raises `UnsupportedVersionError` where the feature is off, as Kafka does."""
    if not features.levels.get(SHARE_VERSION):
        raise UnsupportedVersionError(f"the feature {SHARE_VERSION} is off: raise it to 1 to use share groups")


class ShareGroupHeartbeatHandler(Handler):
    """Takes members into share groups, keeps them there, and tells them what they may read."""

    API: ClassVar[ApiKey] = ApiKey.SHARE_GROUP_HEARTBEAT
    VERSIONS: ClassVar[VersionRange] = (1, 1)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, groups: SharedMembership, features: Features) -> None:
        self._access = access
        self._groups = groups
        self._features = features

    def begin(self, request: ShareGroupHeartbeatRequest, context: RequestContext) -> Begun:
        """Note that the member lives; the answer waits until what is new in it is stored."""
        self._access.check_group(context.connection, AclOperation.READ, request.group_id)
        check_shares_are_on(self._features)
        _check(request)
        return cast("Begun", started(self._begin(request, context)))

    def _begin(self, request: ShareGroupHeartbeatRequest, context: RequestContext) -> Work:
        client, names = context.connection, request.subscribed_topic_names
        yield from check_read(names or (), self._access, client)
        beat = Beat(
            request.member_id,
            request.member_epoch,
            None,
            request.rack_id,
            -1,
            context.client_id or "",
            client.client_host,
            None if names is None else tuple(sorted(set(names))),
            owned={},
        )
        parked = self._groups.heartbeat(request.group_id, beat)
        interval_ms = self._groups.heartbeat_interval_ms(request.group_id)
        return when_done(parked, lambda result: _response(result, interval_ms))


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Whether a request says what it has to."""
    names = request.subscribed_topic_names
    for name in ("member_id", "group_id", "rack_id"):
        if getattr(request, name) == "":
            raise InvalidRequestError(f"{name} is empty")
    if request.member_epoch == JOINING and not names:
        raise InvalidRequestError("who joins has to say what it reads, in subscribed_topic_names")
    if request.member_epoch < LEAVING:
        raise InvalidRequestError(f"there is no member epoch {request.member_epoch}")
    if len(names or ()) > MOST_TOPICS:
        raise InvalidRequestError(f"a member of a share group reads {MOST_TOPICS} topics at most")
    if any(len(name) > MAX_NAME for name in names or ()):
        raise InvalidRequestError(f"a name in subscribed_topic_names has more than the {MAX_NAME} characters of one")


def _response(result: BeatResult, interval_ms: int) -> ShareGroupHeartbeatResponse:
    response = ShareGroupHeartbeatResponse(
        error_code=result.error, error_message=None if result.message is None else text_of(result.message)
    )
    if result.error:
        return response
    response.member_id, response.member_epoch = result.member_id, result.epoch
    response.heartbeat_interval_ms = interval_ms if result.epoch > JOINING else 0
    if result.assigned is not None:
        response.assignment = ShareGroupHeartbeatResponseAssignment(
            topic_partitions=rows_for(
                result.assigned.items(),
                lambda each: ShareGroupHeartbeatResponseTopicPartitions(topic_id=each[0], partitions=sorted(each[1])),
            )
        )
    return response


class ShareGroupDescribeHandler(GroupDescribeHandler[ShareGroupDescribeResponseDescribedGroup, SharedGroup]):
    """Shows share groups: their epochs, and what each member may read."""

    API: ClassVar[ApiKey] = ApiKey.SHARE_GROUP_DESCRIBE
    VERSIONS: ClassVar[VersionRange] = (1, 1)
    _ROW = ShareGroupDescribeResponseDescribedGroup
    _RESPONSE = ShareGroupDescribeResponse

    def __init__(self, access: Access, table: GroupTable, topics: TopicTable, features: Features) -> None:
        super().__init__(access)
        self._table = table
        self._topics = topics
        self._features = features

    def _check(self) -> None:
        check_shares_are_on(self._features)

    def _find(self, group_id: str) -> SharedGroup:
        return shared_group(self._table, group_id)[1]

    def _describe(
        self, group: SharedGroup, row: ShareGroupDescribeResponseDescribedGroup, client: ConnectionContext
    ) -> Work:
        self._put_state(group, row)
        row.assignor_name = SIMPLE
        members = list(group.members)
        names = yield from names_of_topics(members, self._access, self._topics, client)
        row.members = lazily(len(members), (_described(member, names) for member in members))


def _described(member: ConsumerMember, names: Mapping[bytes, str]) -> ShareGroupDescribeResponseMember:
    def topic(topic_id: bytes, name: str, numbers: Sequence[int]) -> ShareGroupDescribeResponseTopicPartitions:
        return ShareGroupDescribeResponseTopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(numbers))

    return ShareGroupDescribeResponseMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscription.topics),
        assignment=ShareGroupDescribeResponseAssignment(topic_partitions=rows_of_topics(member.assigned, names, topic)),
    )
