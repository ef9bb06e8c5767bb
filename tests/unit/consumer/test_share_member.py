"""A member of a share group (KIP-932), event by event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Any

import pytest

from kclient.cluster import Backoff
from kclient.consumer.group.model import GroupRequest, MemberSettings, RequestKind
from kclient.consumer.share.member import ShareMember
from kclient.consumer.share.states import ShareState
from kclient.errors import (
    BrokerConnectionError,
    ErrorCode,
    GroupAuthorizationError,
    GroupMaxSizeReachedError,
    KafkaError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kclient.protocol.messages import (
    FindCoordinatorResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)
from kclient.types import TopicPartition

A, B = b"a" * 16, b"b" * 16
NAMES = {A: "a", B: "b"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def heard(
    epoch: int = 1, assigned: Mapping[bytes, list[int]] | None = None, *, code: int = 0, message: str | None = None
) -> ShareGroupHeartbeatResponse:
    assignment = None
    if assigned is not None:
        assignment = ShareGroupHeartbeatResponseAssignment(
            topic_partitions=[
                ShareGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in assigned.items()
            ]
        )
    return ShareGroupHeartbeatResponse(
        error_code=code,
        error_message=message,
        member_id="me",
        member_epoch=epoch,
        heartbeat_interval_ms=5000,
        assignment=assignment,
    )


class ShareBench:
    """A machine, the time, and shortcuts for the usual answers."""

    def __init__(self) -> None:
        settings = MemberSettings("g", retry_backoff=Backoff(100, 1000, jitter=0), client_rack="here")
        self.machine = ShareMember(settings, "me")
        self.now = 100.0
        self.machine.subscribe(["a"])

    def next(self) -> list[GroupRequest]:
        """The requests that are due; the coordinator and names are found at once."""
        requests: list[GroupRequest] = []
        for _ in range(3):
            todo = self.machine.next(self.now)
            if todo.resolve:
                self.machine.resolved({topic_id: NAMES[topic_id] for topic_id in todo.resolve}, self.now)
            for request in todo.requests:
                if request.kind is RequestKind.FIND_COORDINATOR:
                    self.machine.received(request, FindCoordinatorResponse(node_id=1), self.now)
                else:
                    requests.append(request)
        return requests

    def heartbeat(self) -> tuple[GroupRequest, ShareGroupHeartbeatRequest]:
        (request,) = self.next()
        assert request.kind is RequestKind.SHARE_HEARTBEAT
        built: Any = request.build(1)
        return request, built

    def answer(self, response: ShareGroupHeartbeatResponse) -> ShareGroupHeartbeatRequest:
        request, said = self.heartbeat()
        assert self.machine.awaits(request)
        self.machine.received(request, response, self.now)
        assert self.next() == []
        return said

    def poll(self) -> None:
        self.machine.polled(self.now)

    def later(self, seconds: float = 5.0) -> None:
        self.now += seconds
        self.machine.polled(self.now)

    def stable(self, *numbers: int) -> None:
        self.poll()
        self.answer(heard(1, {A: list(numbers)}))


@pytest.fixture
def bench() -> ShareBench:
    return ShareBench()


def test_joining_and_staying(bench: ShareBench) -> None:
    assert bench.next() == []
    bench.poll()
    said = bench.answer(heard(1, {A: [0, 1]}))
    assert (said.member_id, said.member_epoch, said.rack_id) == ("me", 0, "here")
    assert said.subscribed_topic_names == ["a"]
    assert bench.machine.state is ShareState.STABLE
    assert bench.machine.assigned == {A0: A, A1: A}
    assert bench.next() == []
    bench.later()
    said = bench.answer(heard(1))
    assert (said.member_epoch, said.rack_id, said.subscribed_topic_names) == (1, None, None)
    bench.later()
    bench.answer(heard(2, {A: [1]}))
    assert bench.machine.assigned == {A1: A}
    assert bench.machine.rebalances == 2


def test_another_subscription_is_told_at_once(bench: ShareBench) -> None:
    bench.stable(0)
    bench.machine.subscribe(["b"])
    assert bench.machine.assigned == {}
    said = bench.answer(heard(2, {B: [0]}))
    assert said.subscribed_topic_names == ["b"]
    assert bench.machine.assigned == {B0: B}


def test_names_that_are_not_known_yet(bench: ShareBench) -> None:
    bench.poll()
    request, _ = bench.heartbeat()
    bench.machine.received(request, heard(1, {A: [0], B: [0]}), bench.now)
    bench.machine.subscribe(["a", "b"])
    assert bench.machine.next(bench.now).resolve == {A, B}
    bench.machine.resolved({A: "a"}, bench.now)
    assert bench.machine.assigned == {A0: A}
    bench.later(1)
    assert bench.machine.next(bench.now).resolve == {B}
    bench.machine.resolved(NAMES, bench.now)
    assert bench.machine.assigned == {A0: A, B0: B}


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_membership_that_is_lost_begins_again_at_once(
    bench: ShareBench, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench.stable(0)
    bench.later()
    request, _ = bench.heartbeat()
    with caplog.at_level(logging.WARNING):
        bench.machine.received(request, heard(code=code), bench.now)
    assert "it joins again" in caplog.text
    assert bench.machine.assigned == {}
    said = bench.answer(heard(4, {A: [0]}))
    assert (said.member_id, said.member_epoch, said.subscribed_topic_names) == ("me", 0, ["a"])
    assert bench.machine.assigned == {A0: A}


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError, "Share group 'g'"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, GroupMaxSizeReachedError, r"group\.share\.max\.size"),
        (ErrorCode.UNSUPPORTED_VERSION, UnsupportedVersionError, r"share\.version=1"),
    ],
)
def test_a_refusal_is_raised_once_and_then_tried_again(
    bench: ShareBench, code: int, error: type[KafkaError], says: str
) -> None:
    bench.poll()
    request, _ = bench.heartbeat()
    bench.machine.received(request, heard(code=code, message="no"), bench.now)
    assert bench.machine.outside
    with pytest.raises(error, match=says):
        bench.poll()
    bench.later(1)
    bench.answer(heard(1, {A: [0]}))
    assert bench.machine.assigned == {A0: A}


def test_topics_that_may_not_be_read_leave_it_a_member(bench: ShareBench) -> None:
    bench.stable(0)
    bench.later()
    bench.answer(heard(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(TopicAuthorizationError, match="describe and to read"):
        bench.poll()
    assert bench.machine.state is ShareState.STABLE


def test_a_member_that_is_refused_leaves(bench: ShareBench) -> None:
    bench.stable(0)
    bench.later()
    request, _ = bench.heartbeat()
    bench.machine.received(request, heard(code=ErrorCode.GROUP_AUTHORIZATION_FAILED), bench.now)
    (leave,) = bench.next()
    built: Any = leave.build(1)
    assert (leave.kind, built.member_epoch) == (RequestKind.LEAVE, -1)


@pytest.mark.parametrize("lost", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, "broken"])
def test_a_coordinator_that_moves_is_looked_for_again(bench: ShareBench, lost: Any) -> None:
    bench.stable(0)
    bench.later()
    request, _ = bench.heartbeat()
    if lost == "broken":
        bench.machine.failed(request, BrokerConnectionError("gone"), bench.now)
    else:
        bench.machine.received(request, heard(code=lost), bench.now)
    assert bench.machine.coordinator is None
    assert bench.machine.assigned == {A0: A}
    bench.later(1)
    said = bench.answer(heard(1))
    assert (said.member_epoch, said.subscribed_topic_names) == (1, ["a"])  # everything, as nothing is certain


def test_a_coordinator_that_loads_is_asked_again_later(bench: ShareBench) -> None:
    bench.poll()
    bench.answer(heard(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert bench.next() == []
    bench.later(1)
    bench.answer(heard(1, {A: [0]}))


def test_leaving_and_coming_back(bench: ShareBench) -> None:
    bench.stable(0)
    bench.machine.leave("the test says so")
    assert (bench.machine.state, bench.machine.assigned) == (ShareState.UNJOINED, {})
    (leave,) = bench.next()
    built: Any = leave.build(1)
    assert (leave.kind, built.member_id, built.member_epoch) == (RequestKind.LEAVE, "me", -1)
    bench.machine.subscribe(["a"])
    bench.poll()
    assert bench.next() == []  # it has to have left before
    bench.machine.received(leave, heard(-1), bench.now)
    assert not bench.machine.leaving
    assert bench.answer(heard(7)).member_epoch == 0


def test_who_does_not_poll_leaves_and_the_next_poll_joins(bench: ShareBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stable(0)
    bench.now += 301
    with caplog.at_level(logging.WARNING):
        (leave,) = bench.next()
    assert "max.poll.interval.ms is 300000" in caplog.text
    assert leave.kind is RequestKind.LEAVE
    assert bench.machine.outside
    bench.machine.failed(leave, BrokerConnectionError("gone"), bench.now)
    bench.poll()
    assert bench.answer(heard(9)).member_epoch == 0


def test_waiting_in_a_poll_counts_as_polling(bench: ShareBench) -> None:
    bench.stable(0)
    bench.machine.wait_in_poll(True, bench.now)
    bench.now += 1000
    assert [request.kind for request in bench.next()] == [RequestKind.SHARE_HEARTBEAT]
    bench.machine.wait_in_poll(False, bench.now)
    assert not bench.machine.outside


def test_nothing_is_due_for_who_is_not_subscribed() -> None:
    machine = ShareMember(MemberSettings("g"))
    machine.polled(1.0)
    assert (machine.state, machine.next(1.0).requests, machine.next(1.0).wake_at) == (ShareState.UNJOINED, [], inf)
    machine.leave("nothing to leave")
    assert not machine.leaving
    assert len(machine.member_id) == 22
