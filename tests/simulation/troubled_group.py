"""The coordinator of the troubled cluster's group: the gateway's state machine, which moves from broker to broker."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from kclient.consumer.group.model import RequestKind
from kclient.errors import ErrorCode
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.events import GroupSettings, Leave, Reply, StoreSnapshot, Token
from kclient.gateway.rows.groups import GroupSnapshot
from kclient.protocol.messages import (
    HeartbeatResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kclient.protocol.registry import ApiKey
from tests.simulation.group_messages import NOT_COORDINATOR, join_event, join_response, sync_event, sync_response

if TYPE_CHECKING:
    from kclient.protocol.message import ApiMessage

KINDS = {
    ApiKey.JOIN_GROUP: RequestKind.JOIN,
    ApiKey.SYNC_GROUP: RequestKind.SYNC,
    ApiKey.HEARTBEAT: RequestKind.HEARTBEAT,
    ApiKey.LEAVE_GROUP: RequestKind.LEAVE,
}


class _Parked:
    """A request that is answered later."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.result: Any = None

    def end(self, result: Any) -> None:
        self.result = result
        self.done.set()


class TroubledGroup:
    """One group, and how a broker answers its members."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._parked: dict[Token, _Parked] = {}
        self._stored: GroupSnapshot | None = None
        self._group = self._new_group()

    def _new_group(self) -> ClassicGroup:
        settings = GroupSettings(group_initial_rebalance_delay_ms=0)
        return ClassicGroup("g", settings, lambda prefix: f"{prefix}-{next(self._ids)}")

    async def run(self) -> None:
        """Heed its timers."""
        while True:
            await anyio.sleep(0.25)
            self._perform(self._group.advance(anyio.current_time()))

    def move(self) -> None:
        """Another broker has it, or the same one again after it was killed: what was not stored is gone."""
        parked, self._parked = self._parked, {}
        for waiting in parked.values():
            waiting.end(None)
        self._group = self._new_group()
        if self._stored is not None:
            self._perform(self._group.restore(self._stored, anyio.current_time()))

    def check_commit(self, request: Any) -> int:
        """The error of an OffsetCommit; 0 if the offsets may be stored."""
        generation = request.generation_id_or_member_epoch
        return self._group.check_commit(request.member_id, request.group_instance_id, generation, anyio.current_time())

    def answer(self, key: ApiKey, request: Any) -> Any:
        """What the coordinator answers, at once or later."""
        now = anyio.current_time()
        if key is ApiKey.HEARTBEAT:
            code = self._group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, now)
            return HeartbeatResponse(error_code=code)
        if key is ApiKey.LEAVE_GROUP:
            leaving = [Leave(member.member_id, member.group_instance_id) for member in request.members]
            self._perform(self._group.leave(leaving, now)[1])
            return LeaveGroupResponse()
        token = Token()
        parked = self._parked[token] = _Parked()
        if key is ApiKey.JOIN_GROUP:
            self._perform(self._group.join(join_event(request, "m"), token, now))
        else:
            self._perform(self._group.sync(sync_event(request), token, now))
        return self._later(key, parked)

    async def _later(self, key: ApiKey, parked: _Parked) -> ApiMessage:
        await parked.done.wait()
        if parked.result is None:
            return refusal(key)
        return join_response(parked.result) if key is ApiKey.JOIN_GROUP else sync_response(parked.result)

    def _perform(self, actions: Sequence[Reply | StoreSnapshot]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                waiting = self._parked.pop(action.token, None)
                if waiting is not None:
                    waiting.end(action.result)
            else:
                self._stored = action.snapshot
                self._perform(self._group.stored(action.ticket, ErrorCode.NONE, anyio.current_time()))


def refusal(key: ApiKey) -> Any:
    """What a broker answers that does not have the group."""
    return NOT_COORDINATOR[KINDS[key]]


def commit_answer(request: Any, code: int) -> OffsetCommitResponse:
    """One error, or none, for every partition of a commit."""
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=item.partition_index, error_code=code)
                for item in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)
