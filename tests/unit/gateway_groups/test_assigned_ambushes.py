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
