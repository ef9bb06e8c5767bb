"""A member whose partitions the broker assigns (KIP-848), event by event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import pytest

from kclient.cluster import Backoff
from kclient.consumer.group.model import Complete, GroupRequest, MemberSettings, Prepare, RequestKind
from kclient.consumer.group.remote_member import RemoteMember
from kclient.consumer.group.remote_states import RemoteState
from kclient.errors import (
    BrokerConnectionError,
    CommitFailedError,
    ErrorCode,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupAuthorizationError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRegularExpressionError,
    KafkaError,
    MaxPollExceededError,
    StaleMemberEpochError,
    TopicAuthorizationError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from kclient.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    FindCoordinatorResponse,
)
from kclient.types import ConsumerGroupMetadata, TopicPartition

A, B = b"a" * 16, b"b" * 16
NAMES = {A: "a", B: "b"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def heard(
    epoch: int = 1, assigned: Mapping[bytes, list[int]] | None = None, *, code: int = 0, message: str | None = None
) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if assigned is not None:
        assignment = ConsumerGroupHeartbeatResponseAssignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in assigned.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=code,
        error_message=message,
        member_id="me",
        member_epoch=epoch,
        heartbeat_interval_ms=5000,
        assignment=assignment,
    )


class RemoteBench:
    """A machine, the time, and shortcuts for the usual answers."""

    def __init__(self, instance_id: str | None = None, *, assignor: str | None = None) -> None:
        settings = MemberSettings(
            "g",
            instance_id,
            retry_backoff=Backoff(100, 1000, jitter=0),
            remote_assignor=assignor,
            client_rack="here",
        )
        self.machine = RemoteMember(settings, "me")
        self.now = 100.0
        self.due: list[GroupRequest] = []
        self.owned: set[TopicPartition] = set()
        self.lost: set[TopicPartition] = set()
        self.machine.subscribe(["a"])

    def state(self) -> RemoteState:
        return self.machine.state

    def next(self) -> list[GroupRequest]:
        """The requests that are due; the coordinator and names are found at once."""
        requests, self.due = self.due, []
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

    def heartbeat(self) -> tuple[GroupRequest, ConsumerGroupHeartbeatRequest]:
        """The one that is due, and what it says in version 1."""
        (request,) = self.next()
        assert request.kind is RequestKind.CONSUMER_HEARTBEAT
        built: Any = request.build(1)
        return request, built

    def answer(self, response: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatRequest:
        request, said = self.heartbeat()
        self.machine.received(request, response, self.now)
        self.due = self.next()  # finds names
        return said

    def poll(self) -> None:
        self.machine.polled(self.now)
        while (step := self.machine.step()) is not None:
            if isinstance(step, Prepare):
                if step.lost:
                    self.lost |= self.owned
                    self.owned = set()
                else:
                    self.owned = {tp for tp in self.owned if tp.topic in {"a"}}
                self.machine.prepared(step, self.owned, self.now)
            else:
                self.take(step)

    def take(self, step: Complete) -> None:
        self.owned = set(step.assigned)
        self.machine.took_over(step)
        self.machine.completed(step, gave_up=False)

    def later(self, seconds: float = 5.0) -> None:
        self.now += seconds
        self.machine.polled(self.now)

    def stable(self, *numbers: int) -> None:
        """A member that reads these partitions of `a`, and has said so."""
        self.poll()
        self.answer(heard(1, {A: list(numbers)}))
        self.poll()
        self.answer(heard(1))
        assert self.machine.stable
        assert self.next() == []


def owned(request: ConsumerGroupHeartbeatRequest) -> list[tuple[bytes, list[int]]] | None:
    topics = request.topic_partitions
    return None if topics is None else [(topic.topic_id, topic.partitions) for topic in topics]


def test_nothing_is_sent_before_the_first_poll() -> None:
    bench = RemoteBench()
    todo = bench.machine.next(bench.now)
    assert (todo.requests, todo.wake_at) == ([], inf)
    assert bench.state() is RemoteState.UNJOINED


def test_the_way_into_the_group() -> None:
    """The first heartbeat says everything, the next ones what has changed; an assignment is acknowledged at once."""
    bench = RemoteBench("one", assignor="range")
    bench.poll()
    assert bench.state() is RemoteState.JOINING
    assert bench.machine.metadata.generation_id == -1
    said = bench.answer(heard(3, {A: [0, 1]}))
    assert (said.group_id, said.member_id, said.member_epoch, said.instance_id) == ("g", "me", 0, "one")
    assert (said.rebalance_timeout_ms, said.server_assignor, said.rack_id) == (300_000, "range", "here")
    assert (said.subscribed_topic_names, said.subscribed_topic_regex, owned(said)) == (["a"], "", [])
    assert bench.state() is RemoteState.RECONCILING
    bench.poll()
    assert bench.owned == {A0, A1}
    assert bench.machine.rebalances == 1
    said = bench.answer(heard(3))
    assert (said.member_epoch, owned(said)) == (3, [(A, [0, 1])])
    assert (said.rebalance_timeout_ms, said.server_assignor, said.rack_id) == (-1, None, None)
    assert (said.subscribed_topic_names, said.subscribed_topic_regex) == (None, None)
    assert bench.machine.metadata == ConsumerGroupMetadata("g", 3, "me", "one")
    assert bench.machine.stable
    assert bench.next() == []
    bench.later(4.9)
    assert bench.next() == []
    bench.later(0.2)
    said = bench.answer(heard(3))
    assert (said.member_epoch, owned(said), said.subscribed_topic_names) == (3, None, None)


def test_a_member_has_an_id_of_its_own() -> None:
    first, second = RemoteMember(MemberSettings("g")), RemoteMember(MemberSettings("g"))
    assert first._id != second._id
    assert len(first._id) == 22


def test_partitions_go_before_others_come() -> None:
    bench = RemoteBench()
    bench.stable(0, 1)
    bench.later()
    bench.answer(heard(2, {A: [1]}))
    step = bench.machine.step()
    assert isinstance(step, Complete)
    assert step.assigned == (A1,)
    bench.take(step)
    assert owned(bench.answer(heard(3))) == [(A, [1])]


def test_topics_that_nobody_knows_yet() -> None:
    """What is known is taken over; the rest is looked for, ever less often."""
    bench = RemoteBench()
    bench.machine.subscribe_remotely("a|b")
    bench.poll()
    request, said = bench.heartbeat()
    assert (said.subscribed_topic_names, said.subscribed_topic_regex) == ([], "a|b")
    bench.machine.received(request, heard(1, {A: [0], B: [0]}), bench.now)
    todo = bench.machine.next(bench.now)
    assert todo.resolve == {A, B}
    assert bench.machine.next(bench.now).resolve == frozenset()
    bench.machine.resolved({A: "a"}, bench.now)
    bench.poll()
    assert bench.owned == {A0}
    assert owned(bench.heartbeat()[1]) == [(A, [0])]
    assert bench.machine.next(bench.now).wake_at == pytest.approx(bench.now + 0.1)
    bench.now += 0.1
    assert bench.machine.next(bench.now).resolve == {B}
    bench.machine.resolved({}, bench.now)
    assert bench.machine.next(bench.now).wake_at == pytest.approx(bench.now + 0.2)
    bench.now += 0.2
    assert bench.machine.next(bench.now).resolve == {B}
    bench.machine.resolved(NAMES, bench.now)
    bench.poll()
    assert bench.owned == {A0, B0}


def test_the_broker_changes_its_mind() -> None:
    """Before a poll: only the last assignment is carried out, and whatever it changes, it is acknowledged."""
    bench = RemoteBench()
    bench.stable(0)
    bench.later()
    bench.answer(heard(2, {A: [0, 1]}))
    before = bench.machine.step()
    bench.later()
    bench.answer(heard(3, {A: [0]}))
    assert before is not None
    assert not bench.machine.is_due(before)
    assert bench.machine.step() is None
    assert bench.machine.stable
    assert owned(bench.answer(heard(3))) == [(A, [0])]


def test_what_was_given_up_amid_a_step_is_not_taken_for_owned() -> None:
    """The broker changes its mind while the listener is told of what goes: it comes back by a step of its own."""
    bench = RemoteBench()
    bench.stable(0, 1)
    bench.later()
    bench.answer(heard(2, {A: [0]}))
    step = bench.machine.step()
    assert isinstance(step, Complete)
    bench.machine.begin(step)
    bench.later()
    bench.answer(heard(3, {A: [0, 1]}))
    assert bench.machine.is_due(step)
    bench.take(step)
    following = bench.machine.step()
    assert isinstance(following, Complete)
    assert following.assigned == (A0, A1)


def test_an_assignment_that_comes_amid_a_step_waits() -> None:
    bench = RemoteBench()
    bench.poll()
    bench.answer(heard(1, {A: [0]}))
    step = bench.machine.step()
    assert isinstance(step, Complete)
    bench.machine.took_over(step)  # the listener runs
    bench.later()
    bench.answer(heard(2, {A: [1]}))
    assert bench.machine.is_due(step)
    bench.machine.completed(step, gave_up=False)
    following = bench.machine.step()
    assert isinstance(following, Complete)
    assert following.assigned == (A1,)


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_who_is_fenced_loses_everything_and_joins_again(code: ErrorCode) -> None:
    bench = RemoteBench()
    bench.stable(0, 1)
    was = bench.machine.metadata
    bench.later()
    bench.answer(heard(code=code))
    assert bench.machine.transactional_identity() == was
    with pytest.raises(CommitFailedError, match="lost its membership"):
        bench.machine.commit_identity()
    bench.poll()
    assert bench.lost == {A0, A1}
    said = bench.answer(heard(7, {A: [0]}))
    assert (said.member_id, said.member_epoch, said.subscribed_topic_names, owned(said)) == ("me", 0, ["a"], [])
    bench.poll()
    assert bench.owned == {A0}
    assert bench.machine.metadata.generation_id == 7


def test_one_that_is_fenced_amid_a_step() -> None:
    """What it has just taken over is lost with the rest."""
    bench = RemoteBench()
    bench.poll()
    bench.answer(heard(1, {A: [0]}))
    step = bench.machine.step()
    assert isinstance(step, Complete)
    bench.machine.took_over(step)
    bench.later()
    bench.answer(heard(code=ErrorCode.FENCED_MEMBER_EPOCH))
    assert not bench.machine.is_due(step)
    bench.machine.completed(step, gave_up=False)
    following = bench.machine.step()
    assert isinstance(following, Prepare)
    assert following.lost


REFUSALS: dict[ErrorCode, tuple[type[KafkaError], str]] = {
    ErrorCode.UNRELEASED_INSTANCE_ID: (UnreleasedInstanceIdError, r"close the other one"),
    ErrorCode.UNSUPPORTED_ASSIGNOR: (UnsupportedAssignorError, "uniform and range"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (GroupMaxSizeReachedError, r"group\.consumer\.max\.size"),
    ErrorCode.INVALID_REGULAR_EXPRESSION: (InvalidRegularExpressionError, "RE2"),
    ErrorCode.GROUP_ID_NOT_FOUND: (GroupIdNotFoundError, r"group\.consumer\.migration\.policy"),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (GroupAuthorizationError, "'g'"),
    ErrorCode.UNSUPPORTED_VERSION: (UnsupportedVersionError, r"set group\.protocol=classic"),
    ErrorCode.INVALID_REQUEST: (KafkaError, "The broker says: because"),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_what_the_group_refuses_is_raised_and_tried_again(code: ErrorCode) -> None:
    bench = RemoteBench()
    bench.poll()
    bench.answer(heard(code=code, message="because"))
    assert bench.machine.outside
    kind, text = REFUSALS[code]
    with pytest.raises(kind, match=text):
        bench.machine.polled(bench.now)
    bench.now += 1
    bench.poll()
    assert bench.heartbeat()[1].member_epoch == 0


def test_topics_that_must_not_be_read() -> None:
    """The member stays what it is, and goes on when it may."""
    bench = RemoteBench()
    bench.stable(0)
    bench.later()
    bench.answer(heard(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message="not a"))
    with pytest.raises(TopicAuthorizationError, match="not a"):
        bench.machine.polled(bench.now)
    bench.machine.polled(bench.now)
    assert bench.machine.stable
    assert bench.next() == []
    bench.now += 0.1
    said = bench.answer(heard(1, {A: [0]}))
    assert (said.member_epoch, said.subscribed_topic_names, owned(said)) == (1, ["a"], [(A, [0])])


def test_another_takes_the_name_over() -> None:
    bench = RemoteBench("one")
    bench.stable(0)
    bench.later()
    bench.answer(heard(code=ErrorCode.FENCED_INSTANCE_ID))
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match="'one'"):
            bench.machine.polled(bench.now)
    with pytest.raises(FencedInstanceIdError):
        bench.machine.commit_identity()
    assert bench.next() == []


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_the_coordinator_moves(code: ErrorCode) -> None:
    """The member stays, and the next coordinator is told everything."""
    bench = RemoteBench()
    bench.stable(0)
    bench.later()
    bench.answer(heard(code=code))
    assert bench.machine.coordinator is None
    assert bench.machine.stable
    bench.now += 0.2
    said = bench.answer(heard(1, {A: [0]}))
    assert (said.member_epoch, said.rebalance_timeout_ms, owned(said)) == (1, 300_000, [(A, [0])])
    assert bench.machine.stable


def test_a_connection_that_breaks_and_a_coordinator_that_loads() -> None:
    bench = RemoteBench()
    bench.stable(0)
    bench.later()
    request, _ = bench.heartbeat()
    bench.machine.failed(request, BrokerConnectionError("gone"), bench.now)
    assert bench.machine.coordinator is None
    bench.now += 0.2
    assert owned(bench.answer(heard(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))) == [(A, [0])]
    assert bench.next() == []
    bench.now += 0.2
    assert owned(bench.answer(heard(1, {A: [0]}))) == [(A, [0])]
    assert bench.machine.stable


def test_an_answer_that_nobody_waits_for() -> None:
    bench = RemoteBench()
    bench.stable(0)
    bench.later()
    request, _ = bench.heartbeat()
    bench.machine.lose_coordinator("it moved", bench.now)
    assert not bench.machine.awaits(request)
    bench.machine.received(request, heard(9, {A: []}), bench.now)
    bench.machine.failed(request, BrokerConnectionError("gone"), bench.now)
    assert bench.machine.metadata.generation_id == 1


def test_brokers_that_are_too_old() -> None:
    bench = RemoteBench()
    bench.poll()
    request, _ = bench.heartbeat()
    bench.machine.failed(request, UnsupportedVersionError("no such API"), bench.now)
    with pytest.raises(UnsupportedVersionError, match=r"group\.protocol=consumer.*set group\.protocol=classic"):
        bench.machine.polled(bench.now)
    bench.machine.subscribe_remotely("a.*")
    bench.poll()
    request, said = bench.heartbeat()
    assert said.subscribed_topic_regex == "a.*"
    with pytest.raises(UnsupportedVersionError, match=r"re\.compile"):
        request.build(0)


def test_another_subscription() -> None:
    """It is told once the poll has given up what is not of it."""
    bench = RemoteBench()
    bench.stable(0)
    bench.machine.subscribe(["a", "b"])
    assert bench.next() == []
    step = bench.machine.step()
    assert isinstance(step, Prepare)
    assert not step.lost
    bench.poll()
    said = bench.answer(heard(2, {A: [0], B: [0]}))
    assert (said.subscribed_topic_names, owned(said)) == (["a", "b"], None)
    bench.poll()
    assert bench.owned == {A0, B0}
    bench.machine.subscribe(["a"])
    bench.poll()
    assert bench.owned == {A0}
    said = bench.answer(heard(2))
    assert (said.subscribed_topic_names, owned(said)) == (["a"], [(A, [0])])


def test_what_is_not_subscribed_any_more_is_not_taken_over() -> None:
    """The broker answers a heartbeat that was sent before."""
    bench = RemoteBench()
    bench.machine.subscribe(["a", "b"])
    bench.poll()
    request, _ = bench.heartbeat()
    bench.machine.subscribe(["a"])
    bench.machine.received(request, heard(1, {A: [0], B: [0]}), bench.now)
    bench.next()
    bench.poll()
    assert bench.owned == {A0}
    said = bench.answer(heard(2, {A: [0]}))
    assert said.subscribed_topic_names == ["a"]


@pytest.mark.parametrize(
    ("instance_id", "tell", "epoch"),
    [(None, None, -1), (None, True, -1), (None, False, None), ("one", None, -2), ("one", False, -2), ("one", True, -1)],
)
def test_leaving(instance_id: str | None, tell: bool | None, epoch: int | None) -> None:
    bench = RemoteBench(instance_id)
    bench.stable(0)
    bench.machine.leave("the test is over", tell)
    assert bench.state() is RemoteState.UNJOINED
    assert bench.machine.leaving is (epoch is not None)
    assert bench.machine.transactional_identity().generation_id == -1
    requests = bench.next()
    sent: list[Any] = [request.build(1) for request in requests]
    assert [(each.member_id, each.member_epoch) for each in sent] == ([] if epoch is None else [("me", epoch)])
    for request in requests:
        assert bench.machine.awaits(request)
        bench.machine.received(request, heard(-1), bench.now)
    assert not bench.machine.leaving


def test_who_comes_back_has_left_before() -> None:
    """Both go by the same id: the heartbeat that joins must not come first."""
    bench = RemoteBench()
    bench.stable(0)
    bench.machine.leave("for a while")
    bench.machine.subscribe(["a"])
    bench.poll()
    (leave,) = bench.next()
    assert leave.kind is RequestKind.LEAVE
    bench.machine.failed(leave, BrokerConnectionError("gone"), bench.now)
    assert bench.heartbeat()[1].member_epoch == 0


def test_who_polls_too_late_leaves() -> None:
    bench = RemoteBench()
    bench.stable(0)
    bench.now += 301
    (leave,) = bench.next()
    said: Any = leave.build(1)
    assert said.member_epoch == -1
    with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms") as caught:
        bench.machine.commit_identity()
    assert isinstance(caught.value.__cause__, MaxPollExceededError)
    bench.machine.received(leave, heard(-1), bench.now)
    bench.poll()
    assert bench.lost == {A0}
    assert bench.heartbeat()[1].member_epoch == 0


def test_commits_go_on_with_the_epoch_of_now() -> None:
    """As long as the membership lasts and the partitions are kept."""
    bench = RemoteBench()
    bench.stable(0, 1)
    machine = bench.machine
    asked = machine.commit_identity()
    bench.later()
    bench.answer(heard(2, {A: [0]}))
    assert machine.renewed(asked, [A1]).generation_id == 2
    bench.poll()
    assert machine.renewed(asked, [A0]) == machine.metadata
    assert machine.renewed(asked, [A0, A1]) is asked
    error = machine.commit_refused(ErrorCode.STALE_MEMBER_EPOCH, asked, machine.lookup.epoch, bench.now, [A0])
    assert isinstance(error, StaleMemberEpochError)
    assert error.retriable
    error = machine.commit_refused(ErrorCode.STALE_MEMBER_EPOCH, asked, machine.lookup.epoch, bench.now, [A1])
    assert isinstance(error, CommitFailedError)
    assert machine.fetch_identity() == machine.metadata


def test_commits_that_are_refused() -> None:
    bench = RemoteBench("one")
    bench.stable(0)
    machine, epoch = bench.machine, bench.machine.lookup.epoch
    asked = machine.commit_identity()
    assert machine.commit_refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, asked, epoch, bench.now).retriable
    assert machine.commit_refused(ErrorCode.NOT_COORDINATOR, asked, epoch, bench.now).retriable
    assert machine.coordinator is None
    assert machine.stable
    nobody = ConsumerGroupMetadata("g")
    assert isinstance(machine.commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, nobody, 0, bench.now), CommitFailedError)
    assert machine.stable
    assert isinstance(machine.commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, asked, 0, bench.now), CommitFailedError)
    assert bench.state() is RemoteState.PREPARING
    assert machine.fetch_identity() is None
    error = machine.commit_refused(ErrorCode.FENCED_INSTANCE_ID, asked, 0, bench.now)
    assert isinstance(error, FencedInstanceIdError)
    assert not machine.fenced  # that was of the membership before


def test_a_commit_in_a_group_that_was_deleted() -> None:
    bench = RemoteBench()
    bench.stable(0)
    machine = bench.machine
    error = machine.commit_refused(
        ErrorCode.GROUP_ID_NOT_FOUND, machine.metadata, machine.lookup.epoch, bench.now, [A0]
    )
    assert isinstance(error, CommitFailedError)
    bench.poll()
    assert bench.lost == {A0}
    assert bench.heartbeat()[1].member_epoch == 0


def test_a_stall_is_named() -> None:
    bench = RemoteBench()
    bench.stable(0)
    bench.machine.stalled(50)
    bench.later()
    bench.answer(heard(code=ErrorCode.UNKNOWN_MEMBER_ID))
    with pytest.raises(CommitFailedError, match=r"blocked for 50\.0 s"):
        bench.machine.commit_identity()


def test_the_group_does_not_rebalance_for_a_member(caplog: pytest.LogCaptureFixture) -> None:
    bench = RemoteBench()
    bench.stable(0)
    with caplog.at_level(logging.WARNING):
        bench.machine.request_rejoin("the user wants it")
    assert "the broker decides when it rebalances" in caplog.text
    assert bench.machine.stable


def test_joining_is_tried_again_ever_less_often() -> None:
    bench = RemoteBench()
    bench.poll()
    waits: list[float] = []
    for _ in range(3):
        bench.answer(heard(code=ErrorCode.FENCED_MEMBER_EPOCH))
        bench.poll()
        waits.append(bench.machine.next(bench.now).wake_at - bench.now)
        bench.now += waits[-1]
    assert waits == pytest.approx([0.1, 0.2, 0.4])
    with pytest.raises(CommitFailedError) as caught:
        bench.machine.commit_identity()
    assert isinstance(caught.value.__cause__, FencedMemberEpochError)


def test_a_name_that_is_free_again_means_another_topic() -> None:
    """The topic was deleted and created again: the ids tell, and the partitions have the same names."""
    bench = RemoteBench()
    bench.stable(0)
    bench.later()
    request, _ = bench.heartbeat()
    bench.machine.received(request, heard(2, {B: [0]}), bench.now)
    assert bench.machine.next(bench.now).resolve == {B}
    bench.machine.resolved({B: "a"}, bench.now)
    bench.poll()
    assert bench.owned == {A0}
    assert owned(bench.answer(heard(2))) == [(B, [0])]


def test_a_commit_of_what_was_gone_meanwhile_is_made_as_who_asked_for_it() -> None:
    """Others may have committed since: with the epoch of now it would set them back."""
    bench = RemoteBench()
    bench.stable(0, 1)
    machine = bench.machine
    asked = machine.commit_identity()
    for epoch, numbers in [(2, [0]), (3, [0, 1])]:
        bench.later()
        bench.answer(heard(epoch, {A: numbers}))
        bench.poll()
        bench.answer(heard(epoch))
    assert machine.renewed(asked, [A0]) == machine.metadata
    assert machine.renewed(asked, [A1]) is asked
    assert isinstance(
        machine.commit_refused(ErrorCode.STALE_MEMBER_EPOCH, asked, machine.lookup.epoch, bench.now, [A1]),
        CommitFailedError,
    )
    assert machine.renewed(machine.metadata, [A0, A1]) == machine.metadata


def test_a_commit_of_a_membership_in_a_group_that_was_deleted() -> None:
    """The epochs begin anew: one of before may be the greater."""
    bench = RemoteBench()
    bench.poll()
    bench.answer(heard(7, {A: [0]}))
    bench.poll()
    bench.answer(heard(7))
    asked = bench.machine.commit_identity()
    bench.later()
    bench.answer(heard(code=ErrorCode.UNKNOWN_MEMBER_ID))
    bench.stable(0)
    assert bench.machine.metadata.generation_id == 1
    assert bench.machine.renewed(asked, [A0]) is asked


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("one", -2)])
def test_who_is_refused_as_a_member_leaves(instance_id: str | None, epoch: int) -> None:
    """Else nobody would read its partitions until the session is over."""
    bench = RemoteBench(instance_id)
    bench.stable(0)
    bench.machine.subscribe_remotely("(unclosed")
    bench.poll()
    bench.answer(heard(code=ErrorCode.INVALID_REGULAR_EXPRESSION))
    (leave,) = bench.next()
    said: Any = leave.build(1)
    assert (said.member_id, said.member_epoch) == ("me", epoch)
    with pytest.raises(InvalidRegularExpressionError):
        bench.machine.polled(bench.now)
    bench.machine.received(leave, heard(epoch), bench.now)
    bench.machine.subscribe(["a"])
    bench.now += 1
    bench.poll()
    assert bench.lost == {A0}
    assert bench.heartbeat()[1].member_epoch == 0


def _unanswered(bench: RemoteBench) -> None:
    bench.poll()
    request, _ = bench.heartbeat()
    bench.machine.failed(request, BrokerConnectionError("gone"), bench.now)


def _moved(bench: RemoteBench) -> None:
    bench.poll()
    bench.heartbeat()
    bench.machine.lose_coordinator("a commit failed", bench.now)


def _fenced(bench: RemoteBench) -> None:
    bench.stable(0)
    bench.later()
    bench.answer(heard(code=ErrorCode.FENCED_MEMBER_EPOCH))


def _left_unheard(bench: RemoteBench) -> None:
    bench.stable(0)
    bench.machine.leave("for a while")
    (leave,) = bench.next()
    bench.machine.failed(leave, BrokerConnectionError("gone"), bench.now)
    bench.machine.subscribe(["a"])


def _left_without_a_coordinator(bench: RemoteBench) -> None:
    bench.stable(0)
    bench.machine.lose_coordinator("a commit failed", bench.now)
    bench.machine.leave("for a while")
    bench.machine.subscribe(["a"])


@pytest.mark.parametrize("trouble", [_unanswered, _moved, _fenced, _left_unheard, _left_without_a_coordinator])
def test_a_name_that_the_member_itself_may_have(trouble: Callable[[RemoteBench], None]) -> None:
    """Brokers give no name twice, not even to the member that has it: it leaves first. Another's stays another's."""
    bench = RemoteBench("one")
    trouble(bench)
    bench.now += 1
    bench.poll()
    assert bench.answer(heard(code=ErrorCode.UNRELEASED_INSTANCE_ID)).member_epoch == 0
    bench.now += 1
    (leave,) = bench.due
    said: Any = leave.build(1)
    assert (said.member_id, said.instance_id, said.member_epoch) == ("me", "one", -2)
    bench.machine.received(leave, heard(-2), bench.now)
    bench.due.clear()
    bench.answer(heard(code=ErrorCode.UNRELEASED_INSTANCE_ID))
    with pytest.raises(UnreleasedInstanceIdError):
        bench.machine.polled(bench.now)
