"""Consumer groups (KIP-848) where things come at a bad moment: right after a restart, twice, too late, under other names."""

from __future__ import annotations

from tests.unit.gateway_groups.assignedbox import AssignedBox


def test_the_first_thing_after_a_restart_is_that_a_member_leaves() -> None:
    """Nobody has looked at the topics by then: the others do not lose what they have."""
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.settle("m1", "m2")
    box.restart()
    box.send("m1", -1)
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}


def test_the_first_thing_after_a_restart_is_that_a_member_is_removed() -> None:
    box = AssignedBox()
    box.join("m1")
    box.join("m2")
    box.settle("m1", "m2")
    box.restart()
    error, actions = box.group.expel("m1", None, box.now)
    box.run(actions)
    assert not error
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}


def test_a_dynamic_member_joins_again_as_a_static_one() -> None:
    """It is the same member, with a name from now on: what it has stays its own."""
    box = AssignedBox()
    box.join("m1")
    box.settle("m1")
    box.join("m1", instance="i1")
    box.settle("m1")
    assert box.has("m1") == {"a": [0, 1, 2, 3]}
    member = box.group.members.static("i1")
    assert member is not None
    assert member.member_id == "m1"
    box.send("m1", -1)
    assert not box.group.members.reads_topic("a")
    assert box.group.members.static("i1") is None


def test_a_static_member_joins_again_under_another_name() -> None:
    box = AssignedBox()
    box.join("m1", instance="i1")
    box.settle("m1")
    box.join("m1", instance="i2")
    box.settle("m1")
    assert box.has("m1") == {"a": [0, 1, 2, 3]}
    assert box.group.members.static("i1") is None
    box.restart()
    assert box.group.members.static("i2") is not None


def test_a_member_comes_back_as_another_one_that_is_away() -> None:
    """What it had of its own is given up, and what that one had is its now: nothing is nobody's."""
    box = AssignedBox()
    box.join("m1", instance="i1")
    box.join("m2")
    box.settle("m1", "m2")
    box.send("m1", -2, instance="i1")
    box.join("m2", instance="i1")
    box.settle("m2")
    assert box.has("m2") == {"a": [0, 1, 2, 3]}
    assert len(box.group.members) == 1
