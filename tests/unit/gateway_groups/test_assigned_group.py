"""The state machine of consumer groups (KIP-848), in simulated time."""

from __future__ import annotations

import random

import pytest

from kclient.errors import (
    ErrorCode,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from kclient.gateway.groups.group import AskedTopics
from kclient.gateway.groups.offsets import OffsetCommit
from kclient.gateway.rows.groups import CommittedOffset
from tests.unit.gateway_groups.assignedbox import AssignedBox
from tests.unit.gateway_groups.progressbox import BoxTopic


def commit_of(topic: BoxTopic, *numbers: int) -> OffsetCommit:
    commit = OffsetCommit()
    topic.gone, topic.name = False, "a"  # type: ignore[attr-defined]
    for number in numbers:
        commit.topics.setdefault(topic, {})[number] = CommittedOffset(1)  # type: ignore[call-overload]
    return commit


def test_the_first_member_gets_everything_at_once() -> None:
    box = AssignedBox()
    result = box.join("m1")
    assert (result.error, result.epoch, box.has("m1")) == (0, 1, {"a": [0, 1, 2, 3]})
    assert box.group.shown_state == "Stable"
    assert box.commits == 1


def test_a_second_member_gets_what_the_first_has_given_up() -> None:
    box = AssignedBox()
    box.join("m1")
    result = box.join("m2")
    assert (result.epoch, result.assigned) == (1, {})  # the interval between two targets is not over
    assert box.group.shown_state == "Assigning"
    box.advance(1.0)
    assert box.group.assignment_epoch == 2
    assert box.group.shown_state == "Reconciling"
    assert box.beat("m2").epoch == 2
    assert box.has("m2") == {}  # nobody has given anything up
    told = box.send("m1", 1)
    assert box.told("m1", told).epoch == 1  # it stays where it was until it has
    assert box.has("m1") == {"a": [0, 1]}
    box.beat("m2")
    assert box.has("m2") == {}
    assert box.beat("m1").epoch == 2
    box.beat("m2")
    assert box.has("m2") == {"a": [2, 3]}
    assert box.group.shown_state == "Stable"
    box.check()


def test_who_says_nothing_of_its_partitions_is_not_taken_to_have_given_them_up() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.advance(1.0)
    box.told("m1", box.send("m1", 1))
    assert box.told("m1", box.send("m1", 1)).epoch == 1
    box.beat("m1")
    assert box.epochs["m1"] == 2


def test_who_does_not_give_its_partitions_up_in_time_is_removed() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.advance(1.0)
    box.beat("m1")
    for _ in range(59):
        box.advance(1.0)
        box.send("m1", 1)  # alive, and busy with them
        box.beat("m2")
    box.advance(1.0)
    with pytest.raises(UnknownMemberIdError):
        box.send("m1", 1)
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}


def test_who_is_not_heard_of_is_removed_and_the_others_get_its_partitions() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.settle("m1", "m2")
    for _ in range(45):
        box.advance(1.0)
        box.beat("m2")
    assert "m1" not in box.group.members
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}
    box.advance(45.0)
    assert box.group.shown_state == "Empty"
    assert [key for key in box.rows if "m" in key.partition("/")[2].partition("/")[2]] == []
    assert box.group.delete() is ErrorCode.NONE


def test_leaving() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.settle("m1", "m2")
    left = box.replies[box.send("m1", -1)]
    assert (left.error, left.epoch) == (0, -1)
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}
    with pytest.raises(UnknownMemberIdError):
        box.send("m1", -1)


def test_epochs_that_are_not_the_members_own_are_fenced() -> None:
    box = AssignedBox()
    box.join("m1")
    with pytest.raises(FencedMemberEpochError, match="greater"):
        box.send("m1", 2)
    with pytest.raises(UnknownMemberIdError):
        box.send("m3", 1)
    box.join("m2")
    box.settle("m1", "m2")
    assert box.epochs["m1"] > 1
    with pytest.raises(FencedMemberEpochError, match="less"):
        box.send("m1", 1)


def test_an_answer_that_was_lost_is_told_again() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.advance(1.0)
    box.beat("m1")
    before = dict(box.owned["m1"])
    box.send("m1", 1, owned=before)  # its answer is lost
    again = box.send("m1", 1, owned=before, topics=["a"], timeout_ms=60_000)
    assert box.told("m1", again).epoch == 2
    assert box.has("m1") == {"a": [0, 1]}


def test_static_members_come_back_to_what_they_had() -> None:
    box = AssignedBox()
    box.join("m1", instance="one")
    box.join("m2", instance="two")
    box.settle("m1", "m2")
    had = box.has("m1")
    with pytest.raises(UnreleasedInstanceIdError):
        box.join("m3", instance="one")
    box.send("m1", -2, instance="one")
    box.beat("m2")
    assert box.group.shown_state == "Reconciling"
    epoch = box.group.group_epoch
    assert box.join("m3", instance="one").error == 0
    assert box.has("m3") == had
    assert box.group.group_epoch == epoch
    with pytest.raises(FencedInstanceIdError):
        box.send("m1", 2, instance="one")
    box.send("m3", -2, instance="one")
    for _ in range(45):
        box.advance(1.0)
        box.beat("m2")
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}


def test_topics_that_come_and_grow_and_go() -> None:
    box = AssignedBox(topics={"b": 1})
    box.join("m1", ["a", "b"])
    assert box.has("m1") == {"b": [0]}
    box.topics.put("a", 2)
    box.settle("m1")
    assert box.has("m1") == {"a": [0, 1], "b": [0]}
    box.topics.put("a", 3)
    box.settle("m1")
    assert box.has("m1") == {"a": [0, 1, 2], "b": [0]}
    epoch = box.group.group_epoch
    box.topics.put("c", 3)  # that nobody reads
    box.settle("m1")
    assert box.group.group_epoch == epoch
    box.topics.drop("b")
    box.settle("m1")
    assert box.has("m1") == {"a": [0, 1, 2]}


def test_another_subscription_costs_what_is_not_in_it_at_once() -> None:
    box = AssignedBox(topics={"a": 2, "b": 2})
    box.join("m1", ["a"])
    assert box.has("m1") == {"a": [0, 1]}
    box.beat("m1", topics=["b"])
    assert box.has("m1") == {}
    box.settle("m1")
    assert box.has("m1") == {"b": [0, 1]}


def test_patterns() -> None:
    box = AssignedBox(topics={"a1": 1, "b1": 1})
    box.join("m1", (), pattern="a.*", resolved={"a.*": frozenset({"a1"})})
    assert box.has("m1") == {"a1": [0]}
    box.topics.put("a2", 1)
    box.beat("m1", resolved={"a.*": frozenset({"a1", "a2"})})
    box.settle("m1")
    assert box.has("m1") == {"a1": [0], "a2": [0]}
    box.beat("m1", topics=["b1"])
    box.settle("m1")
    assert box.has("m1") == {"a1": [0], "a2": [0], "b1": [0]}
    box.beat("m1", pattern="")
    box.settle("m1")
    assert box.has("m1") == {"b1": [0]}
    assert not box.group.members.patterns


def test_the_assignor_that_most_members_want() -> None:
    box = AssignedBox(topics={"a": 4, "b": 4})
    for member in ("m1", "m2"):
        box.join(member, ["a", "b"], assignor="range")
    box.settle("m1", "m2")
    assert [box.has(member) for member in ("m1", "m2")] == [{"a": [0, 1], "b": [0, 1]}, {"a": [2, 3], "b": [2, 3]}]


def test_no_more_members_than_the_limit() -> None:
    box = AssignedBox(group_consumer_max_size=1)
    box.join("m1")
    with pytest.raises(GroupMaxSizeReachedError):
        box.join("m2")
    box.join("m1")


def test_answers_wait_for_the_store() -> None:
    box = AssignedBox()
    box.hold = True
    token = box.send("m1", 0, topics=["a"], owned={}, timeout_ms=1_000)
    assert token not in box.replies
    box.finish_stores()
    assert box.told("m1", token).epoch == 1
    assert box.told("m1", box.send("m1", 1)).error == 0  # nothing new: at once
    assert box.held == []


def test_a_store_that_fails() -> None:
    """Who waits is told to try again, and what could not be stored is stored later."""
    box = AssignedBox()
    box.hold = True
    token = box.send("m1", 0, topics=["a"], owned={}, timeout_ms=1_000)
    box.finish_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.replies[token].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert box.rows == {}
    box.hold = False
    box.advance(1.0)
    assert len(box.rows) == 2
    assert box.join("m1").epoch == 1
    assert box.has("m1") == {"a": [0, 1, 2, 3]}


def test_what_could_not_be_told_is_told_by_the_next_answer() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.advance(1.0)
    box.hold = True
    token = box.send("m1", 1, owned=box.owned["m1"])
    box.finish_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.replies[token].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    box.hold = False
    box.advance(1.0)  # it is stored by now
    assert box.told("m1", box.send("m1", 1)).assigned is not None
    assert box.has("m1") == {"a": [0, 1]}
    assert box.told("m1", box.send("m1", 1)).assigned is None


def test_a_restart_loses_no_epoch() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2", instance="two")
    box.advance(1.0)
    box.beat("m1")  # it was told to give some up
    epochs = box.group.group_epoch, box.group.assignment_epoch, dict(box.epochs)
    box.restart()
    assert (box.group.group_epoch, box.group.assignment_epoch, box.epochs) == epochs
    assert box.group.shown_state == "Reconciling"
    box.beat("m1")
    box.beat("m2", instance="two")
    assert box.has("m2") == {"a": [2, 3]}
    assert box.group.group_epoch == epochs[0]
    box.restart()
    box.beat("m2", instance="two")
    for _ in range(45):
        box.advance(1.0)
        box.beat("m2", instance="two")
    assert [member.member_id for member in box.group.members] == ["m2"]


def test_commits_are_fenced_by_the_epoch_of_the_partition() -> None:
    box = AssignedBox()
    box.join("m1")
    topic = box.topics.by_name["a"]

    def check(epoch: int, *numbers: int, transactional: bool = False, version: int = 9) -> ErrorCode:
        commit = commit_of(BoxTopicOf(topic), *numbers)
        return box.group.check_commit(
            "m1", None, epoch, box.now, commit=commit, transactional=transactional, version=version
        )

    box.join("m2")
    box.settle("m1", "m2")
    assert box.epochs["m1"] == 2
    assert check(2, 0) is check(2, 3) is ErrorCode.NONE
    assert check(1, 0, 1) is ErrorCode.NONE  # it has had them since epoch 1
    assert check(1, 0, 3) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(1, 3, transactional=True) is ErrorCode.ILLEGAL_GENERATION
    assert check(3, 0) is check(-1, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(2, 0, version=8) is ErrorCode.UNSUPPORTED_VERSION
    box.send("m2", -1)
    box.settle("m1")
    assert check(2, 3) is ErrorCode.STALE_MEMBER_EPOCH  # it was the other's then
    assert check(2, 0) is ErrorCode.NONE
    assert box.group.check_commit("", None, -1, box.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert box.group.check_commit("", None, -1, box.now, transactional=True) is ErrorCode.NONE
    assert box.group.check_fetch("m1", 3) is box.group.check_fetch(None, -1) is ErrorCode.NONE
    assert box.group.check_fetch("m1", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert box.group.check_fetch("m9", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    box.send("m1", -1)
    assert box.group.check_commit("", None, -1, box.now) is ErrorCode.NONE


class BoxTopicOf(BoxTopic):
    """A topic of which offsets are committed."""

    def __init__(self, topic: BoxTopic) -> None:
        super().__init__("a", topic.topic_id, topic.partitions)
        self.gone = False

    __hash__ = object.__hash__


def test_offsets_of_what_members_read_are_kept() -> None:
    box = AssignedBox(topics={"a": 1, "b1": 1})
    box.join("m1", ["a"], pattern="b.", resolved={"b.": frozenset({"b1"})})
    asked = AskedTopics(["a", "b1", "c"])
    used = box.group.offsets_in_use(asked)
    with pytest.raises(StopIteration) as told:
        next(used)
    assert told.value.value == (ErrorCode.NONE, frozenset({"a", "b1"}))
    with pytest.raises(StopIteration) as told:
        next(box.group.expiry(0, 5, asked, unread=False))
    assert told.value.value == (5, None, frozenset({"a", "b1"}))


def test_a_group_with_members_is_not_deleted() -> None:
    box = AssignedBox()
    box.join("m1")
    assert box.group.delete() is ErrorCode.NON_EMPTY_GROUP
    box.hold = True
    token = box.send("m1", -1)
    assert box.group.delete() is ErrorCode.NONE
    assert box.replies.get(token) is None
    assert box.group.delete() is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("seed", range(20))
def test_no_partition_is_ever_two_members(seed: int) -> None:
    """Members come, go, fall silent and come back, topics grow, the coordinator restarts; in the end all is read."""
    rng = random.Random(seed)
    box = AssignedBox(topics={"a": 5, "b": 3})
    alive: list[str] = []
    names = iter(range(10_000))
    for _ in range(150):
        move = rng.random()
        if move < 0.15 and len(alive) < 6:
            member = f"m{next(names)}"
            box.join(member, rng.choice([["a"], ["b"], ["a", "b"]]))
            alive.append(member)
        elif move < 0.2 and alive:
            box.send(alive.pop(rng.randrange(len(alive))), -1)
        elif move < 0.22 and alive:
            alive.pop(rng.randrange(len(alive)))
        elif move < 0.25:
            box.topics.put("a", box.topics.by_name["a"].partitions + 1)
        elif move < 0.28:
            box.restart()
        elif move < 0.32 and alive:
            box.beat(rng.choice(alive), topics=rng.choice([["a"], ["b"], ["a", "b"]]))
        elif alive:
            for member in rng.sample(alive, rng.randint(1, len(alive))):
                box.beat(member)
        box.advance(rng.choice([0.1, 1.0, 3.0]))
        for member in list(alive):
            if member not in box.group.members:
                alive.remove(member)
        box.check()
    if not alive:
        box.join("last", ["a", "b"])
        alive.append("last")
    for _ in range(60):
        box.advance(1.0)
        for member in alive:
            box.beat(member)
    box.settle(*alive)
    read = {member.subscription.topics for member in box.group.members}
    wanted = {
        (name, number) for topics in read for name in topics for number in range(box.topics.by_name[name].partitions)
    }
    got = [(name, number) for member in alive for name, numbers in box.has(member).items() for number in numbers]
    assert sorted(got) == sorted(wanted)
