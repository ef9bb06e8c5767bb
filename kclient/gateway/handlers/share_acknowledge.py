"""ShareAcknowledge: members of a share group say what became of records (KIP-932, KIP-1222)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, cast

from kclient.errors import InvalidShareSessionEpochError
from kclient.gateway.contexts import RequestContext
from kclient.gateway.handlers._shares import PER_PARTITION, RENEWING_SINCE, PartOutcome, ShareRequests
from kclient.gateway.handlers._work import counted, rows_of
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leader
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH, MemberSession
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.share import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponseLeaderIdAndEpoch,
    ShareAcknowledgeResponseNodeEndpoint,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
)
from kclient.protocol.registry import ApiKey


class ShareAcknowledgeHandler(Handler):
    """Answers ShareAcknowledge.

    Args:
        requests: Knows sessions, and what they hold.
    """

    API: ClassVar[ApiKey] = ApiKey.SHARE_ACKNOWLEDGE
    VERSIONS: ClassVar[VersionRange] = (1, 2)

    def __init__(self, requests: ShareRequests) -> None:
        self._requests = requests

    def begin(self, request: ShareAcknowledgeRequest, context: RequestContext) -> Begun:
        """Take the request's place in its session; what is said is in force when it is stored."""
        name = self._requests.name(context, request.group_id, request.member_id)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpochError("a share session begins with a fetch, not with acknowledgements")
        session = self._requests.sessions.go_on(name, request.share_session_epoch)
        sizes = rows_of((topic.partitions for topic in request.topics), PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context, session)))

    async def _finish(
        self, request: ShareAcknowledgeRequest, context: RequestContext, session: MemberSession
    ) -> ShareAcknowledgeResponse:
        client = context.connection
        renewing = request.is_renew_ack and context.api_version >= RENEWING_SINCE
        pace = Pace(client.flow)
        found = await self._requests.acknowledge(client, session.name, request.topics, pace, renewing=renewing)
        if request.share_session_epoch == FINAL_EPOCH:
            self._requests.end(session)
        lock_ms = self._requests.shares.settings(session.name.group_id).lock_ms
        return await self._answer(context, found, lock_ms, pace)

    async def _answer(
        self, context: RequestContext, found: dict[PartitionId, PartOutcome], lock_ms: int, pace: Pace
    ) -> ShareAcknowledgeResponse:
        response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
        topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
        leaders: list[Leader] = []
        for key, (code, text) in found.items():
            if pace.over:
                await pace.pause()
            row = ShareAcknowledgeResponsePartitionData(
                partition_index=key.partition, error_code=code, error_message=text
            )
            leader = self._requests.leader(context.connection, key, code)
            if leader is not None:
                row.current_leader = ShareAcknowledgeResponseLeaderIdAndEpoch(
                    leader_id=leader.node_id, leader_epoch=leader.epoch
                )
                leaders.append(leader)
            topic = topics.get(key.topic_id)
            if topic is None:
                topic = topics[key.topic_id] = ShareAcknowledgeTopicResponse(topic_id=key.topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)
        response.node_endpoints = self._requests.endpoints(
            context.connection, leaders, ShareAcknowledgeResponseNodeEndpoint
        )
        return response
