"""Between the messages of the group protocol and the events of the gateway's `ClassicGroup`."""

from __future__ import annotations

from typing import Any

from kclient.consumer.group.model import RequestKind
from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Join, JoinResult, Sync
from kclient.protocol.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    SyncGroupResponse,
)

NOT_COORDINATOR: dict[RequestKind, Any] = {
    RequestKind.JOIN: JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR),
    RequestKind.SYNC: SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR),
    RequestKind.HEARTBEAT: HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR),
    RequestKind.LEAVE: LeaveGroupResponse(error_code=ErrorCode.NOT_COORDINATOR),
}


def join_event(message: Any, client_id: str) -> Join:
    return Join(
        message.member_id,
        message.group_instance_id,
        client_id,
        "/sim",
        message.session_timeout_ms,
        message.rebalance_timeout_ms,
        message.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in message.protocols),
        require_member_id=message.group_instance_id is None,
        can_skip_assignment=True,
    )


def sync_event(message: Any) -> Sync:
    return Sync(
        message.member_id,
        message.group_instance_id,
        message.generation_id,
        {item.member_id: item.assignment for item in message.assignments},
        message.protocol_type,
        message.protocol_name,
    )


def join_response(result: JoinResult) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(member_id=member, group_instance_id=instance, metadata=metadata)
            for member, instance, metadata in result.members
        ],
    )


def sync_response(result: Any) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        assignment=result.assignment,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
    )
