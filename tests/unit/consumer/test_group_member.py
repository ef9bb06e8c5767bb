"""The coordinator's state machine, event by event."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from kclient.cluster import Backoff
from kclient.consumer.group.assignors import CooperativeStickyAssignor, RangeAssignor, Subscription
from kclient.consumer.group.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kclient.consumer.group.member import GroupMember
from kclient.consumer.group.model import Complete, GroupRequest, MemberSettings, Prepare, RequestKind
from kclient.consumer.group.states import (
    MemberState,
)
from kclient.errors import (
    BrokerConnectionError,
    ClosedError,
    CommitFailedError,
    ErrorCode,
    FencedInstanceIdError,
    GroupAuthorizationError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    KafkaError,
    ProtocolError,
    RebalanceInProgressError,
)
from kclient.protocol.messages import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from kclient.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Bench:
    """A machine, the time, and shortcuts for the usual answers."""

    def __init__(self, *, cooperative: bool = False, instance_id: str | None = None, rack: str | None = None) -> None:
        settings = MemberSettings("g", instance_id, retry_backoff=Backoff(100, 1000, jitter=0), client_rack=rack)
        self.machine = GroupMember(settings, [CooperativeStickyAssignor() if cooperative else RangeAssignor()])
        self.name = "cooperative-sticky" if cooperative else "range"
        self.now = 100.0
        self.owned: tuple[TopicPartition, ...] = ()
        self.machine.subscribe(["a"])
        self.machine.update_metadata({"a": 2}, [], self.now)

    def next(self) -> dict[RequestKind, GroupRequest]:
        return {request.kind: request for request in self.machine.next(self.now).requests}

    def answer(self, request: GroupRequest, response: Any) -> None:
        self.machine.received(request, response, self.now)

    def find(self) -> None:
        self.answer(self.next()[RequestKind.FIND_COORDINATOR], FindCoordinatorResponse(node_id=1))

    def find_if_needed(self, requests: Iterable[GroupRequest]) -> None:
        for request in requests:
            if request.kind is RequestKind.FIND_COORDINATOR:
                self.answer(request, FindCoordinatorResponse(node_id=1))

    def poll(self) -> None:
        self.machine.polled(self.now)
        if isinstance(step := self.machine.step(), Prepare):
            self.owned = ()
            self.machine.prepared(step, (), self.now)

    def join(self, generation: int = 1, leader: bool = True) -> dict[RequestKind, GroupRequest]:
        """From the request to join to the request to sync."""
        joined = JoinGroupResponse(
            generation_id=generation,
            protocol_name=self.name,
            leader="me" if leader else "you",
            member_id="me",
            members=[JoinGroupResponseMember(member_id="me", metadata=encode_subscription(["a"], None, [], -1, None))]
            if leader
            else [],
        )
        self.answer(self.next()[RequestKind.JOIN], joined)
        return self.next()

    def sync(self, requests: dict[RequestKind, GroupRequest], *partitions: TopicPartition) -> None:
        self.answer(requests[RequestKind.SYNC], SyncGroupResponse(assignment=encode_assignment(partitions, None)))

    def complete(self) -> Complete:
        self.machine.polled(self.now)
        done = self.machine.step()
        assert isinstance(done, Complete)
        self.machine.completed(done, gave_up=False)
        self.owned = done.assigned
        return done

    def stable(self) -> None:
        self.poll()
        self.find()
        self.sync(self.join(), A0, A1)
        self.complete()
        assert self.machine.state is MemberState.STABLE

    def heartbeat(self, code: ErrorCode = ErrorCode.NONE, *, user_polls: bool = True) -> None:
        if user_polls and self.machine.state is MemberState.STABLE:
            self.machine.polled(self.now)
        self.now += 2.99
        self.next()
        self.now += 0.01
        self.answer(self.next()[RequestKind.HEARTBEAT], HeartbeatResponse(error_code=code))


def test_nothing_is_sent_before_the_first_poll() -> None:
    bench = Bench()
    todo = bench.machine.next(bench.now)
    assert todo.requests == []
    assert todo.wake_at == float("inf")
    assert bench.machine.state is MemberState.UNJOINED


def test_the_way_into_the_group() -> None:
    bench = Bench()
    bench.machine.polled(bench.now)
    step = bench.machine.step()
    assert isinstance(step, Prepare)
    bench.machine.prepared(step, (), bench.now)
    bench.find()
    first = bench.next()[RequestKind.JOIN]
    request: Any = first.build(9)
    assert (request.group_id, request.member_id, request.session_timeout_ms) == ("g", "", 45_000)
    assert first.timeout == 305.0  # the broker answers when everybody has joined
    bench.answer(first, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    requests = bench.join()
    sync: Any = requests[RequestKind.SYNC].build(5)
    assert sync.member_id == "me"
    assert decode_assignment(sync.assignments[0].assignment)[0] == [A0, A1]
    bench.sync(requests, A0, A1)
    done = bench.complete()
    assert done.assigned == (A0, A1)
    assert bench.machine.metadata.generation_id == 1
    assert bench.machine.rebalances == 1


def sent_whole(request: GroupRequest, versions: Iterable[int]) -> list[int]:
    """The versions in which everything that is set in a request is sent: fields that one does not have are dropped."""
    made = {version: request.build(version) for version in versions}
    return [version for version, one in made.items() if type(one).decode(one.encode(version), version) == one]


def test_old_versions_leave_out_what_they_do_not_know() -> None:
    bench = Bench()
    bench.poll()
    lookup = bench.next()[RequestKind.FIND_COORDINATOR]
    assert sent_whole(lookup, range(7)) == [0, 1, 2, 3, 4, 5, 6]
    bench.answer(lookup, FindCoordinatorResponse(node_id=1))
    join = bench.next()[RequestKind.JOIN]
    assert sent_whole(join, range(10)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # version 0 has one timeout for everything
    joined = JoinGroupResponse(generation_id=1, protocol_name="range", leader="you", member_id="me")
    bench.answer(join, joined)
    sync = bench.next()[RequestKind.SYNC]
    assert sent_whole(sync, range(6)) == [0, 1, 2, 3, 4, 5]
    bench.sync({RequestKind.SYNC: sync})
    bench.complete()
    bench.machine.leave("done")
    leave = bench.next()[RequestKind.LEAVE]
    assert sent_whole(leave, range(6)) == [0, 1, 2, 3, 4, 5]


def test_the_leader_waits_for_the_metadata_of_topics_that_only_others_read() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    members = [
        JoinGroupResponseMember(member_id="me", metadata=encode_subscription(["a"], None, [], -1, None)),
        JoinGroupResponseMember(member_id="you", metadata=encode_subscription(["b", "gone"], None, [], -1, None)),
    ]
    joined = JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=members)
    bench.answer(bench.next()[RequestKind.JOIN], joined)
    assert bench.machine.state is MemberState.ASSIGNING
    assert bench.machine.group_topics == {"a", "b", "gone"}
    assert RequestKind.SYNC not in bench.next()
    bench.machine.update_metadata({"a": 2, "b": 1}, ["gone"], bench.now)
    sync: Any = bench.next()[RequestKind.SYNC].build(5)
    assigned = {item.member_id: decode_assignment(item.assignment)[0] for item in sync.assignments}
    assert assigned == {"me": [A0, A1], "you": [TopicPartition("b", 0)]}


def test_metadata_that_tell_nothing_new_make_nobody_join_again() -> None:
    bench = Bench()
    bench.stable()
    bench.machine.update_metadata({"a": 2, "other": 7}, ["gone"], bench.now)
    assert bench.machine.state is MemberState.STABLE
    bench.machine.update_metadata({"a": 3}, [], bench.now)
    assert bench.machine.state is MemberState.PREPARING


def test_heartbeats_keep_their_interval_and_one_is_under_way_at_a_time() -> None:
    bench = Bench()
    bench.stable()
    assert RequestKind.HEARTBEAT not in bench.next()
    assert bench.machine.next(bench.now).wake_at == bench.now + 3.0
    bench.now += 3.0
    request = bench.next()[RequestKind.HEARTBEAT]
    bench.now += 10.0
    assert RequestKind.HEARTBEAT not in bench.next()
    bench.answer(request, HeartbeatResponse())
    assert RequestKind.HEARTBEAT in bench.next()


def test_a_rebalance_shows_in_a_heartbeat() -> None:
    bench = Bench()
    bench.stable()
    bench.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert bench.machine.state is MemberState.PREPARING
    found = bench.machine.step()
    assert isinstance(found, Prepare)
    assert not found.lost
    bench.poll()
    bench.sync(bench.join(generation=2), A0)
    assert bench.complete().generation_id == 2


def test_a_coordinator_that_moved_is_looked_up_again_without_leaving_the_group() -> None:
    bench = Bench()
    bench.stable()
    bench.heartbeat(ErrorCode.NOT_COORDINATOR)
    assert bench.machine.state is MemberState.STABLE
    assert bench.machine.coordinator is None
    bench.now += 0.1
    bench.answer(bench.next()[RequestKind.FIND_COORDINATOR], FindCoordinatorResponse(node_id=2))
    bench.now += 3.0
    assert bench.next()[RequestKind.HEARTBEAT].node_id == 2


def test_a_heartbeat_to_a_coordinator_that_moved_is_not_waited_for() -> None:
    bench = Bench()
    bench.stable()
    bench.now += 3.0
    assert bench.next()[RequestKind.HEARTBEAT].node_id == 1
    identity = bench.machine.commit_identity()
    bench.machine.commit_refused(ErrorCode.NOT_COORDINATOR, identity, bench.machine.lookup.epoch, bench.now)
    bench.now += 0.1
    bench.answer(bench.next()[RequestKind.FIND_COORDINATOR], FindCoordinatorResponse(node_id=2))
    bench.now += 3.0
    assert bench.next()[RequestKind.HEARTBEAT].node_id == 2


def test_a_coordinator_that_never_answers_is_given_up_after_the_session() -> None:
    bench = Bench()
    bench.stable()
    bench.now += 3.0
    bench.next()
    bench.now += 45.0
    bench.machine.polled(bench.now)
    bench.next()
    assert bench.machine.coordinator is None
    bench.now += 0.1
    assert RequestKind.FIND_COORDINATOR in bench.next()


def test_a_broken_connection_while_joining_leads_to_joining_again() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    join = bench.next()[RequestKind.JOIN]
    bench.machine.failed(join, BrokerConnectionError("gone"), bench.now)
    assert bench.machine.state is MemberState.JOINING
    bench.now += 0.1
    bench.find()
    assert RequestKind.JOIN in bench.next()
    bench.answer(join, JoinGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))  # the old one's late answer
    assert bench.machine.state is MemberState.JOINING


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_who_is_forgotten_while_joining_joins_anew(code: ErrorCode) -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    sync = bench.join()[RequestKind.SYNC]
    bench.answer(sync, SyncGroupResponse(error_code=code))
    request: Any = bench.next()[RequestKind.JOIN].build(9)
    assert request.member_id == ("" if code == ErrorCode.UNKNOWN_MEMBER_ID else "me")
    assert bench.machine.step() is None  # nothing was read yet that could be lost


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_lost_membership_is_announced_as_lost(code: ErrorCode) -> None:
    bench = Bench()
    bench.stable()
    bench.heartbeat(code)
    found = bench.machine.step()
    assert isinstance(found, Prepare)
    assert found.lost
    with pytest.raises(CommitFailedError, match=r"session\.timeout\.ms"):
        bench.machine.commit_identity()
    bench.poll()
    request: Any = bench.next()[RequestKind.JOIN].build(9)
    assert request.member_id == ("" if code == ErrorCode.UNKNOWN_MEMBER_ID else "me")


def test_a_blocked_event_loop_is_named_as_the_cause() -> None:
    bench = Bench()
    bench.stable()
    bench.machine.stalled(61.5)
    bench.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    with pytest.raises(CommitFailedError, match=r"event loop was blocked for 61\.5 s"):
        bench.machine.commit_identity()


def test_an_event_loop_that_was_blocked_for_a_moment_is_not_blamed() -> None:
    bench = Bench()
    bench.stable()
    bench.machine.stalled(5.0)  # more than heartbeat.interval.ms, and far from session.timeout.ms
    bench.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    with pytest.raises(CommitFailedError, match="does not know it") as raised:
        bench.machine.commit_identity()
    assert "blocked" not in str(raised.value)


def test_the_poll_interval_does_not_run_while_the_user_waits_in_poll() -> None:
    bench = Bench()
    bench.stable()
    bench.machine.wait_in_poll(True, bench.now)
    for _ in range(200):
        bench.heartbeat(user_polls=False)
    assert bench.machine.state is MemberState.STABLE
    bench.machine.wait_in_poll(False, bench.now)
    for _ in range(99):
        bench.heartbeat(user_polls=False)
    bench.now += 4
    requests = bench.next()
    assert bench.machine.state is MemberState.UNJOINED
    leave: Any = requests[RequestKind.LEAVE].build(5)
    assert leave.members[0].reason == "max.poll.interval.ms exceeded"


def test_a_static_member_does_not_leave() -> None:
    bench = Bench(instance_id="i")
    bench.stable()
    bench.machine.leave("closed")
    assert not bench.machine.leaving
    assert RequestKind.LEAVE not in bench.next()


def test_leaving_does_not_queue_behind_a_parked_join() -> None:
    bench = Bench()
    bench.stable()
    bench.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    bench.poll()
    assert bench.next()[RequestKind.JOIN].parks
    bench.machine.leave("closed")
    assert bench.machine.leaving
    leave = bench.next()[RequestKind.LEAVE]
    assert not leave.parks
    bench.machine.failed(leave, BrokerConnectionError("gone"), bench.now)
    assert not bench.machine.leaving


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, GroupMaxSizeReachedError),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, InconsistentGroupProtocolError),
    ],
)
def test_a_refusal_is_raised_by_the_next_poll_and_the_one_after_tries_again(
    code: ErrorCode, error: type[Exception]
) -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    bench.answer(bench.next()[RequestKind.JOIN], JoinGroupResponse(error_code=code))
    assert bench.machine.state is MemberState.FAILED
    with pytest.raises(error):
        bench.machine.polled(bench.now)
    bench.poll()
    assert RequestKind.JOIN in bench.next()


@pytest.mark.parametrize(("error", "warned"), [(ClosedError("closed"), False), (ProtocolError("garbage"), True)])
def test_that_the_consumer_closes_is_no_trouble_of_the_group(
    error: KafkaError, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    bench.machine.failed(bench.next()[RequestKind.JOIN], error, bench.now)
    assert bench.machine.state is MemberState.FAILED
    assert ["WARNING"] * warned == [record.levelname for record in caplog.records if record.levelname == "WARNING"]


def test_a_fenced_member_stays_fenced() -> None:
    bench = Bench(instance_id="i")
    bench.stable()
    bench.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match=r"group\.instance\.id 'i'"):
            bench.machine.polled(bench.now)
    with pytest.raises(FencedInstanceIdError):
        bench.machine.commit_identity()
    assert bench.next() == {}


def test_a_group_that_must_not_be_used() -> None:
    bench = Bench()
    bench.poll()
    lookup = bench.next()[RequestKind.FIND_COORDINATOR]
    bench.answer(lookup, FindCoordinatorResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(GroupAuthorizationError):
        bench.machine.polled(bench.now)


def test_commits_that_are_refused() -> None:
    bench = Bench()
    bench.stable()
    identity = bench.machine.commit_identity()
    refused = bench.machine.commit_refused(ErrorCode.REBALANCE_IN_PROGRESS, identity, 1, bench.now)
    assert isinstance(refused, RebalanceInProgressError)
    assert not refused.retriable
    assert bench.machine.state is MemberState.PREPARING
    refused = bench.machine.commit_refused(ErrorCode.NOT_COORDINATOR, identity, 1, bench.now)
    assert refused.retriable
    assert bench.machine.coordinator is None
    refused = bench.machine.commit_refused(ErrorCode.ILLEGAL_GENERATION, identity, 1, bench.now)
    assert isinstance(refused, CommitFailedError)
    assert "max.poll.interval.ms (300000)" in str(refused)
    found = bench.machine.step()
    assert isinstance(found, Prepare)
    assert found.lost


def test_a_commit_in_a_group_that_was_deleted() -> None:
    bench = Bench()
    bench.stable()
    identity = bench.machine.commit_identity()
    refused = bench.machine.commit_refused(ErrorCode.GROUP_ID_NOT_FOUND, identity, 1, bench.now)
    assert isinstance(refused, CommitFailedError)
    found = bench.machine.step()
    assert isinstance(found, Prepare)
    assert found.lost


def test_an_assignment_that_was_lost_while_it_was_taken_over() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    bench.sync(bench.join(), A0)
    bench.machine.polled(bench.now)
    done = bench.machine.step()
    assert isinstance(done, Complete)
    bench.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)  # while the listener runs
    bench.machine.completed(done, gave_up=False)
    found = bench.machine.step()
    assert isinstance(found, Prepare)
    assert found.lost


def test_an_assignment_of_topics_no_longer_wanted_is_left_out_and_corrected() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    requests = bench.join()
    bench.machine.subscribe(["b"])
    bench.sync(requests, A0, TopicPartition("b", 0))
    assert bench.complete().assigned == (TopicPartition("b", 0),)
    assert bench.machine.state is MemberState.PREPARING


def test_a_failing_assignor_is_named() -> None:
    class Failing(RangeAssignor):
        name = "failing"

        def assign(self, partitions: Any, members: Any) -> Any:
            raise RuntimeError("no idea")

    bench = Bench()
    bench.machine = GroupMember(MemberSettings("g"), [Failing()])
    bench.name = "failing"
    bench.machine.subscribe(["a"])
    bench.machine.update_metadata({"a": 2}, [], bench.now)
    bench.poll()
    bench.find()
    bench.join()
    with pytest.raises(Exception, match=r"'failing' of partition\.assignment\.strategy failed: .*no idea"):
        bench.machine.polled(bench.now)


# ------------------------------------------------------------------ what members tell each other


def test_subscriptions_and_assignments_round_trip() -> None:
    data = encode_subscription(["a", "b"], b"user", [A1, TopicPartition("b", 7)], 4, "rack")
    assert decode_subscription(data, "i") == Subscription(
        ("a", "b"), b"user", (A1, TopicPartition("b", 7)), 4, "i", "rack"
    )
    assert decode_assignment(encode_assignment([A0, A1], b"x")) == ([A0, A1], b"x")
    assert decode_assignment(b"") == ([], None)


def test_old_and_future_versions_are_read() -> None:
    old = b"\x00\x00" + b"\x00\x00\x00\x01\x00\x01a" + b"\xff\xff\xff\xff"
    assert decode_subscription(old) == Subscription(("a",))
    future = b"\x00\x63" + encode_subscription(["a"], None, [], 3, None)[2:] + b"more"
    assert decode_subscription(future).generation_id == 3


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff\x00\x00", b"\x00\x03\x00\x00\x00\x09"])
def test_garbage_in_a_members_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(data)


# ------------------------------------------------------------------ what comes too late


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_commit_that_is_answered_when_the_member_has_left_changes_nothing(code: ErrorCode) -> None:
    if code == ErrorCode.NONE:
        return
    bench = Bench(instance_id="i")
    bench.stable()
    identity = bench.machine.commit_identity()
    bench.machine.leave("unsubscribed")
    assert isinstance(bench.machine.commit_refused(code, identity, 1, bench.now), KafkaError)
    assert bench.machine.state is MemberState.UNJOINED
    assert bench.machine.error is None
    bench.machine.subscribe(["a"])
    bench.poll()
    assert bench.machine.state is MemberState.JOINING


def test_what_went_wrong_at_an_earlier_coordinator_says_nothing_of_the_present_one() -> None:
    bench = Bench()
    bench.stable()
    earlier = bench.machine.lookup.epoch
    bench.machine.lose_coordinator("it hangs", bench.now)
    bench.now += 1
    bench.answer(bench.next()[RequestKind.FIND_COORDINATOR], FindCoordinatorResponse(node_id=2))
    bench.machine.lose_coordinator("a commit was not answered", bench.now, earlier)
    identity = bench.machine.commit_identity()
    bench.machine.commit_refused(ErrorCode.NOT_COORDINATOR, identity, earlier, bench.now)
    assert bench.machine.coordinator == 2


def test_a_refused_lookup_that_nobody_waits_for_any_more() -> None:
    bench = Bench()
    bench.poll()
    lookup = bench.next()[RequestKind.FIND_COORDINATOR]
    bench.machine.leave("unsubscribed")
    bench.answer(lookup, FindCoordinatorResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
    assert bench.machine.error is None
    bench.machine.subscribe(["a"])
    bench.machine.polled(bench.now)  # does not raise what was said of another time


# ------------------------------------------------------------------ looking for the coordinator


def test_a_coordinator_that_is_none_is_looked_for_ever_less_often_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kclient.consumer")
    bench = Bench()
    bench.poll()
    delays = []
    for _ in range(6):
        bench.find()
        asked = bench.now
        bench.answer(bench.next()[RequestKind.JOIN], JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
        bench.now = bench.machine.next(bench.now).wake_at
        delays.append(round(bench.now - asked, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    told = [record.message for record in caplog.records if "looking for the coordinator" in record.message]
    assert told == ["group g: looking for the coordinator again: joining was answered with NOT_COORDINATOR"]
    bench.find()
    bench.sync(bench.join(), A0, A1)
    bench.complete()
    bench.heartbeat(ErrorCode.NOT_COORDINATOR)  # it did well meanwhile: this is news
    assert bench.machine.next(bench.now).wake_at == pytest.approx(bench.now + 0.1)
    assert "a heartbeat was answered with NOT_COORDINATOR" in caplog.records[-1].message


def test_a_group_that_is_being_loaded_is_asked_ever_less_often() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    delays = []
    for _ in range(5):
        asked = bench.now
        joined = JoinGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        bench.answer(bench.next()[RequestKind.JOIN], joined)
        bench.now = bench.machine.next(bench.now).wake_at
        delays.append(round(bench.now - asked, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.0]


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_lets_members_join_and_refuses_to_assign_is_asked_ever_less_often(code: ErrorCode) -> None:
    bench = Bench()
    bench.poll()
    delays = []
    for generation in range(1, 7):
        if bench.machine.coordinator is None:
            bench.find()
        asked = bench.now
        bench.answer(bench.join(generation)[RequestKind.SYNC], SyncGroupResponse(error_code=code))
        bench.now = bench.machine.next(bench.now).wake_at
        delays.append(round(bench.now - asked, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_coordinator_that_hangs_while_one_joins_is_left_for_the_one_that_took_over() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    join = bench.next()[RequestKind.JOIN]
    assert bench.machine.next(bench.now).wake_at == bench.now + 30.0
    bench.now += 30.0
    check = bench.next()[RequestKind.FIND_COORDINATOR]
    bench.answer(check, FindCoordinatorResponse(node_id=1))  # the group gathers: it is still the one
    assert bench.next() == {}
    bench.now += 30.0
    check = bench.next()[RequestKind.FIND_COORDINATOR]
    bench.machine.failed(check, BrokerConnectionError("gone"), bench.now)
    assert bench.next() == {}
    bench.now += 30.0
    check = bench.next()[RequestKind.FIND_COORDINATOR]
    bench.answer(check, FindCoordinatorResponse(node_id=2))
    bench.now += 0.1
    bench.answer(bench.next()[RequestKind.FIND_COORDINATOR], FindCoordinatorResponse(node_id=2))
    again = bench.next()[RequestKind.JOIN]
    assert again.node_id == 2
    bench.answer(join, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))  # the first one wakes up
    assert bench.machine.state is MemberState.JOINING


def test_the_coordinator_is_looked_for_as_soon_as_the_session_is_over() -> None:
    bench = Bench()
    bench.stable()
    bench.now += 3
    assert RequestKind.HEARTBEAT in bench.next()
    bench.now = 100.0 + 45.0
    todo = bench.machine.next(bench.now)
    assert todo.wake_at == pytest.approx(bench.now + 0.1)
    bench.now += 0.1
    assert RequestKind.FIND_COORDINATOR in bench.next()


# ------------------------------------------------------------------ patterns


def test_with_a_pattern_nobody_joins_before_the_metadata_are_fresh() -> None:
    bench = Bench()
    bench.machine.subscribe(["a"], by_pattern=True)
    bench.poll()
    todo = bench.machine.next(bench.now)
    assert todo.refresh is not None
    bench.answer(todo.requests[0], FindCoordinatorResponse(node_id=1))
    assert bench.machine.next(bench.now).requests == []
    bench.machine.subscribe(["a", "new"], by_pattern=True)
    bench.machine.refreshed(todo.refresh)
    join: Any = bench.next()[RequestKind.JOIN].build(9)
    assert decode_subscription(join.protocols[0].metadata).topics == ("a", "new")
    assert bench.machine.next(bench.now).refresh is None


def test_a_refresh_of_an_earlier_attempt_to_join_is_none_of_this_one() -> None:
    bench = Bench()
    bench.machine.subscribe(["a"], by_pattern=True)
    bench.poll()
    first = bench.machine.next(bench.now)
    bench.find_if_needed(first.requests)
    bench.machine.leave("unsubscribed")
    bench.machine.subscribe(["a"], by_pattern=True)
    bench.poll()
    todo = bench.machine.next(bench.now)
    assert first.refresh is not None
    bench.machine.refreshed(first.refresh)
    assert bench.next() == {}
    assert todo.refresh is not None
    bench.machine.refreshed(todo.refresh)
    assert RequestKind.JOIN in bench.next()


# ------------------------------------------------------------------ assignors of the user's


class Broken(RangeAssignor):
    def __init__(self, user_data: Any) -> None:
        super().__init__()
        self.user_data = user_data

    def subscription_user_data(self, topics: Any) -> Any:
        if isinstance(self.user_data, Exception):
            raise self.user_data
        return self.user_data


@pytest.mark.parametrize("user_data", [RuntimeError("no disk"), "text", 5], ids=repr)
def test_an_assignor_that_fails_when_a_member_joins_is_named(user_data: Any) -> None:
    machine = GroupMember(MemberSettings("g"), [Broken(user_data)])
    machine.subscribe(["a"])
    machine.polled(0.0)
    machine.prepared(Prepare(lost=False), (), 0.0)
    lookup = machine.next(0.0).requests[0]
    machine.received(lookup, FindCoordinatorResponse(node_id=1), 0.0)
    machine.next(0.0)
    with pytest.raises(KafkaError, match=r"The assignor 'range' of partition\.assignment\.strategy failed"):
        machine.polled(0.0)
    assert machine.state is MemberState.UNJOINED


def test_an_error_of_kafkas_that_an_assignor_raises_is_told_as_it_is() -> None:
    error = InconsistentGroupProtocolError("read the topics in one group")
    machine = GroupMember(MemberSettings("g"), [Broken(error)])
    machine.subscribe(["a"])
    machine.polled(0.0)
    machine.prepared(Prepare(lost=False), (), 0.0)
    machine.received(machine.next(0.0).requests[0], FindCoordinatorResponse(node_id=1), 0.0)
    machine.next(0.0)
    with pytest.raises(InconsistentGroupProtocolError) as raised:
        machine.polled(0.0)
    assert raised.value is error


def test_a_join_that_could_not_leave_before_the_member_left_is_none() -> None:
    bench = Bench()
    bench.poll()
    bench.find()
    join = bench.next()[RequestKind.JOIN]
    assert bench.machine.awaits(join)
    bench.machine.leave("unsubscribed")
    assert not bench.machine.awaits(join)


def test_leaving_again_does_not_take_the_place_of_leaving_before() -> None:
    bench = Bench()
    bench.stable()
    bench.machine.leave("unsubscribed")
    first = bench.next()[RequestKind.LEAVE]  # which waits for a connection
    bench.machine.subscribe(["a"])
    bench.poll()
    bench.sync(bench.join(), A0, A1)
    bench.complete()
    bench.machine.leave("unsubscribed again")
    second = bench.next()[RequestKind.LEAVE]
    assert bench.machine.awaits(first)
    assert bench.machine.awaits(second)
    bench.machine.failed(first, BrokerConnectionError("gone"), bench.now)
    assert bench.machine.leaving, "that was the first one"


def test_a_leader_in_a_rack_assigns_by_racks_and_anew_when_replicas_move() -> None:
    """KIP-881: partition 0 has no replica where the first member is."""
    bench = Bench(rack="x")
    places = {"a": [{"y"}, {"x"}]}
    bench.machine.update_metadata({"a": 2}, [], bench.now, places.__getitem__)
    bench.poll()
    bench.find()
    members = [
        JoinGroupResponseMember(member_id=member, metadata=encode_subscription(["a"], None, [], -1, rack))
        for member, rack in (("me", "x"), ("you", "y"))
    ]
    joined = JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=members)
    bench.answer(bench.next()[RequestKind.JOIN], joined)
    request = bench.next()[RequestKind.SYNC]
    sync: Any = request.build(5)
    assigned = {item.member_id: decode_assignment(item.assignment)[0] for item in sync.assignments}
    assert assigned == {"me": [A1], "you": [A0]}
    mine = next(item.assignment for item in sync.assignments if item.member_id == "me")
    bench.answer(request, SyncGroupResponse(assignment=mine))
    assert bench.complete().assigned == (A1,)
    bench.machine.update_metadata({"a": 2}, [], bench.now, {"a": [{"y"}, {"x"}]}.__getitem__)
    assert bench.machine.state is MemberState.STABLE
    bench.machine.update_metadata({"a": 2}, [], bench.now, {"a": [{"x"}, {"x"}]}.__getitem__)
    assert bench.machine.state is MemberState.PREPARING
