"""What a consumer reads and where it is: subscription, assignment, positions, reset policies."""

from __future__ import annotations

import re

import pytest

from kclient.cluster import Backoff
from kclient.consumer.group.auto_commit import AutoCommit
from kclient.consumer.partition_state import POSITION_TABLE, PartitionState, PositionState
from kclient.consumer.reset import EARLIEST, LATEST, ResetKind, ResetPolicy
from kclient.consumer.subscription import SubscriptionKind, SubscriptionState
from kclient.errors import ConfigError, IllegalStateError, NoOffsetForPartitionError
from kclient.types import OffsetAndMetadata, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def subscriptions() -> SubscriptionState:
    return SubscriptionState(EARLIEST)


def test_the_ways_to_read_do_not_mix(subscriptions: SubscriptionState) -> None:
    assert subscriptions.subscribe(["a"])
    assert not subscriptions.subscribe(["a"])
    assert subscriptions.subscribe(["a", "b"])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        subscriptions.assign([A0])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        subscriptions.subscribe_pattern(re.compile("a"))
    subscriptions.unsubscribe()
    subscriptions.assign([A0])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        subscriptions.subscribe(["a"])
    assert subscriptions.kind is SubscriptionKind.ASSIGNED


def test_a_pattern_has_to_match_the_whole_name(subscriptions: SubscriptionState) -> None:
    subscriptions.subscribe_pattern(re.compile("a|b."))
    assert subscriptions.match(["a", "ab", "b", "bc"])
    assert subscriptions.topics == {"a", "bc"}
    assert not subscriptions.match(["bc", "a"])
    assert subscriptions.match([])
    assert subscriptions.uses_group


def test_partitions_that_stay_keep_their_positions(subscriptions: SubscriptionState) -> None:
    subscriptions.assign([A0, A1])
    subscriptions.seek(A0, 5)
    subscriptions.pause([A0])
    gone = subscriptions.state(A1)
    subscriptions.assign([A0, B0])
    assert subscriptions.state(A0).position == 5
    assert subscriptions.paused == {A0}
    assert gone.version == -1  # what was fetched for it is recognised as worthless
    assert subscriptions.assignment == {A0, B0}
    with pytest.raises(IllegalStateError, match="a-1"):
        subscriptions.state(A1)


def test_the_way_to_a_position(subscriptions: SubscriptionState) -> None:
    subscriptions.assign([A0])
    state = subscriptions.state(A0)
    assert subscriptions.without_position(0.0) == [state]
    assert not state.fetchable
    subscriptions.reset(A0)
    assert subscriptions.resetting(0.0) == [state]
    assert state.policy == EARLIEST
    assert subscriptions.found(A0, state.version, 7, 2)
    assert (state.position, state.fetch_offset, state.epoch, state.fetchable) == (7, 7, 2, True)
    assert subscriptions.consumed() == ({A0: OffsetAndMetadata(7, "", 2)}, {})


def test_a_late_answer_does_not_undo_a_seek(subscriptions: SubscriptionState) -> None:
    subscriptions.assign([A0])
    version = subscriptions.state(A0).version
    subscriptions.seek(A0, 3)
    assert not subscriptions.found(A0, version, 99, None)
    assert subscriptions.state(A0).position == 3
    subscriptions.reset(A0, LATEST)
    version = subscriptions.state(A0).version
    subscriptions.reset(A0, EARLIEST)
    assert not subscriptions.found(A0, version, 99, None)


def test_errors_hold_a_partition_back(subscriptions: SubscriptionState) -> None:
    subscriptions.assign([A0])
    subscriptions.state(A0).retry_at = 10.0
    assert subscriptions.without_position(9.0) == []
    assert subscriptions.next_retry(9.0) == 10.0
    assert subscriptions.next_retry(10.0) is None
    assert len(subscriptions.without_position(10.0)) == 1


def test_without_a_policy_it_is_the_users_turn() -> None:
    subscriptions = SubscriptionState(ResetPolicy(ResetKind.NONE))
    subscriptions.assign([A0])
    with pytest.raises(NoOffsetForPartitionError, match=r"auto\.offset\.reset is none"):
        subscriptions.reset(A0)
    subscriptions.reset(A0, LATEST)
    assert subscriptions.state(A0).state is PositionState.RESETTING


def test_pausing_is_all_or_nothing(subscriptions: SubscriptionState) -> None:
    subscriptions.assign([A0])
    with pytest.raises(IllegalStateError):
        subscriptions.pause([A0, B0])
    assert subscriptions.paused == set()


def test_illegal_transitions_of_a_position_raise() -> None:
    assert PositionState.UNKNOWN not in {state for following in POSITION_TABLE.values() for state in following.values()}
    with pytest.raises(IllegalStateError, match="DELETED must not happen in UNKNOWN"):
        PartitionState(A0, 1).outdate(2)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ("none", ResetPolicy(ResetKind.NONE)),
        ("by_duration:PT1H", ResetPolicy(ResetKind.BY_DURATION, 3_600_000)),
        ("by_duration:P2DT3M0.5S", ResetPolicy(ResetKind.BY_DURATION, 172_980_500)),
    ],
)
def test_reset_policies(text: str, policy: ResetPolicy) -> None:
    assert ResetPolicy.parse(text) == policy


@pytest.mark.parametrize(
    "text", ["", "first", "by_duration", "by_duration:", "by_duration:P", "by_duration:1h", "latest:PT1S"]
)
def test_impossible_reset_policies(text: str) -> None:
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
        ResetPolicy.parse(text)


def test_what_a_policy_asks_for() -> None:
    assert EARLIEST.timestamp(5000) == -2
    assert LATEST.timestamp(5000) == -1
    assert ResetPolicy.parse("by_duration:PT2S").timestamp(5000) == 3000
    assert ResetPolicy.parse("by_duration:PT9S").timestamp(5000) == 0


def test_when_auto_commits_are_due() -> None:
    commits = AutoCommit(5.0, Backoff(100, 1000, jitter=0))
    assert not commits.polled(100.0)  # the first interval begins with the first poll
    assert not commits.polled(104.9)
    assert commits.polled(105.0)
    assert not commits.polled(105.1)
    commits.failed(105.2, again=True)
    assert commits.polled(105.31)
    commits.failed(105.4, again=True)  # ever less often
    assert not commits.polled(105.55)
    assert commits.polled(105.61)
    commits.failed(105.7, again=False)
    assert not commits.polled(110.5)
    commits.succeeded()
    assert commits.failures == 0
    never = AutoCommit(None, Backoff(100, 1000))
    assert not never.enabled
    assert not never.polled(1e9)
