"""The state machine of share groups (KIP-932): who may read what, epochs, sessions, the store, and restarts."""

from __future__ import annotations

import itertools
import random

import pytest

from kclient.errors import ErrorCode, FencedMemberEpochError, GroupMaxSizeReachedError, UnknownMemberIdError
from kclient.gateway.groups.assignors.model import GroupView, MemberView, Partitions
from kclient.gateway.groups.assignors.simple import assign_simply
from kclient.gateway.groups.events import Token
from tests.unit.gateway_groups.sharedbox import SharedBox

LEAVES = -1


def test_members_share_partitions_and_nobody_has_to_give_up_first() -> None:
    box = SharedBox(topics={"a": 2}, group_share_assignment_interval_ms=0)
    one = box.enter("one")
    assert (one.error, one.member_id, one.epoch) == (ErrorCode.NONE, "one", 1)
    assert box.has("one") == {"a": [0, 1]}
    assert box.group.shown_state == "Stable"

    two = box.enter("two")
    assert (two.epoch, box.has("two")) == (2, {"a": [0]})  # at once, although the other has it still
    assert box.has("one") == {"a": [0, 1]}
    assert box.group.shown_state == "Stable"
    assert (box.goes_on("one").epoch, box.has("one")) == (2, {"a": [1]})
    assert box.goes_on("one").assigned is None

    for name in ("three", "four"):
        box.enter(name)
    for name in ("one", "two", "three"):
        box.goes_on(name)
    assert box.readers() == {("a", 0): 2, ("a", 1): 2}


def test_a_target_waits_for_its_time() -> None:
    box = SharedBox(topics={"a": 2})
    box.enter("one")
    assert box.enter("two").epoch == 1  # of the target before
    assert box.has("two") == {}
    box.advance(1.0)
    assert (box.goes_on("two").epoch, box.has("two")) == (2, {"a": [0]})


def test_epochs_are_checked() -> None:
    box = SharedBox(group_share_assignment_interval_ms=0)
    box.enter("one")
    box.enter("two")
    assert box.goes_on("one").epoch == 2
    assert box.replies[box.ask("one", 1)].epoch == 2  # the answer with the new one may have been lost
    box.enter("three")
    assert box.goes_on("one").epoch == 3
    for wrong in (1, 4):
        with pytest.raises(FencedMemberEpochError):
            box.ask("one", wrong)
    with pytest.raises(UnknownMemberIdError):
        box.ask("nobody", 3)
    with pytest.raises(UnknownMemberIdError):
        box.ask("nobody", LEAVES)
    again = box.enter("one")
    assert (again.epoch, again.assigned is None) == (3, False)


def test_who_leaves_or_is_not_heard_of_makes_room() -> None:
    box = SharedBox(topics={"a": 1}, group_share_max_size=2, group_share_assignment_interval_ms=0)
    box.enter("one")
    box.enter("two")
    with pytest.raises(GroupMaxSizeReachedError, match=r"group\.share\.max\.size"):
        box.enter("three")
    left = box.replies[box.ask("one", LEAVES)]
    assert (left.error, left.epoch, left.member_id) == (ErrorCode.NONE, -1, "one")
    box.enter("three")
    box.advance(44.0)
    box.goes_on("three")
    box.advance(2.0)  # 45 s after "two" was heard of
    assert [member.member_id for member in box.group.members] == ["three"]
    box.advance(60.0)
    assert box.group.shown_state == "Empty"
    assert box.group.delete() is ErrorCode.NONE
    assert box.group.shown_state == "Dead"


def test_topics_that_come_go_and_grow() -> None:
    box = SharedBox(topics={"a": 1}, group_share_assignment_interval_ms=0)
    box.enter("one", ("a", "b"))
    assert box.has("one") == {"a": [0]}
    box.topics.put("b", 2)
    box.topics.put("a", 2)
    assert box.goes_on("one").epoch == 2
    assert box.has("one") == {"a": [0, 1], "b": [0, 1]}
    box.topics.drop("a")
    box.goes_on("one")
    assert box.has("one") == {"b": [0, 1]}
    box.topics.put("c", 1)
    box.goes_on("one")
    box.goes_on("one", ("c",))
    assert box.has("one") == {"c": [0]}
    box.enter("two", ("b", "c"))
    assert box.has("two") == {"b": [0, 1], "c": [0]}
    box.goes_on("one", ("d",))
    assert box.has("one") == {}


def test_an_answer_waits_for_the_store() -> None:
    box = SharedBox(group_share_assignment_interval_ms=0)
    box.hold = True
    first = box.ask("one", 0, topics=("a",))
    assert first not in box.replies
    box.finish_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.replies[first].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    box.hold = False
    box.advance(2.0)
    assert box.enter("one").error is ErrorCode.NONE
    commits = box.commits
    assert box.goes_on("one").assigned is None
    assert box.commits == commits  # nothing was new


def test_a_slow_target_is_waited_for() -> None:
    box = SharedBox(topics={"a": 2}, group_share_assignment_interval_ms=0)
    box.enter("one")
    box.slow = True
    waits = box.ask("two", 0, topics=("a",))
    assert waits not in box.replies
    assert box.goes_on("one").assigned is None  # others go on
    box.finish_work()
    assert box.told("two", waits).epoch == 2


def test_a_restart_forgets_nothing() -> None:
    box = SharedBox(topics={"a": 3}, group_share_assignment_interval_ms=0)
    box.enter("one", rack="here")
    box.enter("two")
    box.goes_on("one")
    before, epochs = dict(box.owned), dict(box.epochs)
    box.restart()
    assert box.group.shown_state == "Stable"
    for name in ("one", "two"):
        assert box.goes_on(name).assigned is None
    assert (box.owned, box.epochs) == (before, epochs)
    one = box.group.members.get("one")
    assert one is not None
    assert (one.rack_id, one.client_id, one.client_host, one.subscription.topics) == ("here", "client", "/host", ("a",))
    box.restart()
    box.advance(46.0)
    assert box.group.shown_state == "Empty"
    box.restart()
    assert (box.group.shown_state, box.group.idle, box.group.untouched) == ("Empty", False, False)


def test_a_group_that_an_administrator_makes() -> None:
    box = SharedBox()
    assert box.group.untouched
    token = Token()
    box.run(box.group.establish(token))
    assert box.replies[token].error is ErrorCode.NONE
    box.restart()
    assert (box.group.group_epoch, box.group.assignment_epoch, box.group.shown_state) == (1, 1, "Empty")
    again = Token()
    box.run(box.group.establish(again))
    assert box.replies[again].error is ErrorCode.NONE
    assert box.enter("one").epoch == 2


@pytest.mark.slow
def test_random_groups_are_balanced_and_outlive_crashes() -> None:
    """Members come, go, change what they read and are lost; the coordinator crashes; in the end all is divided."""
    for seed in range(40):
        rng = random.Random(seed)
        counts = {"a": rng.randint(1, 6), "b": rng.randint(1, 3)}
        box = SharedBox(topics=counts, group_share_assignment_interval_ms=rng.choice((0, 1000)))
        names = (f"m{number}" for number in itertools.count())
        for _ in range(60):
            present = [member.member_id for member in box.group.members]
            what = rng.random()
            if what < 0.3 or not present:
                box.enter(next(names), rng.choice((("a",), ("b",), ("a", "b"))))
            elif what < 0.4:
                box.ask(rng.choice(present), LEAVES)
            elif what < 0.5:
                box.goes_on(rng.choice(present), rng.choice((("a",), ("a", "b"))))
            elif what < 0.6:
                box.restart()
            elif what < 0.65:
                box.topics.put("a", counts["a"] + rng.randint(0, 3))
            else:
                box.goes_on(rng.choice(present))
            box.advance(rng.random())
        for _ in range(3):
            for member in box.group.members:
                box.goes_on(member.member_id)
            box.advance(1.0)
        assert all(member.epoch == box.group.assignment_epoch for member in box.group.members)
        assert box.group.settled
        for member in box.group.members:
            assert box.has(member.member_id).keys() <= set(member.subscription.topics)
        reading = {name for member in box.group.members for name in member.subscription.topics}
        there = {(name, number) for name in reading for number in range(box.topics.by_name[name].partitions)}
        assert box.readers().keys() == there


# The assignor


def view(members: dict[str, Partitions], topics: tuple[bytes, ...], **counts: int) -> GroupView:
    return GroupView(
        {name: MemberView(topics, None, target) for name, target in members.items()},
        {name.encode(): count for name, count in counts.items()},
    )


def test_the_assignor_keeps_what_it_can() -> None:
    held: dict[str, Partitions] = {"one": {b"a": frozenset({0, 1, 2, 3})}, "two": {}}
    assert assign_simply(view(held, (b"a",), a=4)) == {
        "one": {b"a": frozenset({2, 3})},
        "two": {b"a": frozenset({0, 1})},
    }


def test_more_members_than_partitions_all_get_one() -> None:
    found = assign_simply(view({f"m{number}": {} for number in range(7)}, (b"a", b"b"), a=1, b=2))
    sizes = [sum(map(len, partitions.values())) for partitions in found.values()]
    assert min(sizes) >= 1
    assert sum(sizes) == 9  # three for each


def test_nobody_reads_anything() -> None:
    assert assign_simply(view({"one": {b"a": frozenset({0})}}, ())) == {"one": {}}
