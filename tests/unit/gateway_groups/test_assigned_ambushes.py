"""Consumer groups (KIP-848) where things come at a bad moment: after a restart, too late, under other names."""

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


def test_a_heartbeat_that_waited_for_a_target_is_old_news() -> None:
    """Its member came again on another connection, and got something: it has not given that up before."""
    box = AssignedBox(topics={"a": 4, "b": 4})
    box.join("m1")
    box.advance(1)
    box.join("m2")
    box.beat("m1")
    assert box.has("m1") == {"a": [0, 1]}
    box.advance(1.5)
    box.slow = True
    old = box.send("m2", box.epochs["m2"], topics=["a", "b"], owned={})
    assert old not in box.replies
    box.beat("m1")
    box.beat("m2")
    assert box.has("m2") == {"a": [2, 3]}
    box.slow = False
    box.finish_work()
    assert box.told("m2", old).assigned == {}
    box.owned["m2"] = {box.topics.by_name["a"].topic_id: [2, 3]}  # until it has given them up
    box.beat("m2")
    box.beat("m1")
    assert box.has("m1") == {"a": [0, 1]}
    box.owned["m2"] = {}
    box.settle("m1", "m2")
    assert (box.has("m1"), box.has("m2")) == ({"a": [0, 1, 2, 3]}, {"b": [0, 1, 2, 3]})
