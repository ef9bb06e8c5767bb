"""Whole groups in simulated time: whatever happens, those who live end up in one generation and share the work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ErrorCode
from kclient.gateway.groups.states import GroupState
from tests.simulation.simulated_group import PARTITIONS, SimulatedMember, World


def add(world: World, name: str, instance_id: str | None = None) -> SimulatedMember:
    member = SimulatedMember(world, name, instance_id)
    world.members.append(member)
    member.start()
    return member


def check_settled(world: World) -> None:
    """All who live are in one stable generation, own every partition once, and nobody else is in the group."""
    alive = [member for member in world.members if member.alive]
    roster = {member.member_id for member in world.group.members}
    assert roster == {member.member_id for member in alive}
    if not alive:
        assert world.group.state is GroupState.EMPTY
        return
    assert world.group.state is GroupState.STABLE
    assert {member.generation for member in alive} == {world.group.generation}
    owned = sorted(partition for member in alive for partition in member.assignment)
    assert owned == list(range(PARTITIONS))


def test_a_group_grows_and_shrinks() -> None:
    world = World(1, loss=0)
    first = add(world, "a")
    world.run(20)
    check_settled(world)
    add(world, "b")
    world.run(20)
    check_settled(world)
    first.leave()
    world.run(20)
    check_settled(world)


def test_a_group_of_fifty_settles_in_one_generation() -> None:
    world = World(2, loss=0)
    for number in range(50):
        add(world, f"m{number}")
    world.run(60)
    assert world.group.generation == 1
    roster = {member.member_id for member in world.members}
    assert {member.member_id for member in world.group.members} == roster


def test_static_members_restart_without_a_rebalance() -> None:
    world = World(3, loss=0)
    members = [add(world, f"m{number}", f"i{number}") for number in range(3)]
    world.run(30)
    check_settled(world)
    generation = world.group.generation
    members[1].crash()
    world.run(2)
    add(world, "m1", "i1")
    world.run(30)
    assert world.group.generation == generation
    check_settled(world)


def test_the_second_of_two_with_one_instance_id_fences_the_first() -> None:
    world = World(4, loss=0)
    first = add(world, "a", "same")
    world.run(30)
    second = add(world, "b", "same")
    world.run(30)
    assert first.fenced
    assert second.alive
    check_settled(world)


def test_a_restart_of_the_gateway_keeps_the_generation() -> None:
    world = World(5, loss=0)
    for number in range(3):
        add(world, f"m{number}")
    world.run(30)
    generation = world.group.generation
    world.restart()
    world.run(30)
    assert world.group.generation == generation
    check_settled(world)


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join static", "crash", "leave", "restart", "rejoin", "wait"]),
        st.integers(0, 9),
        st.floats(0.0, 15.0),
    ),
    max_size=25,
)


@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.05, 0.2]),
    delay_ms=st.sampled_from([0, 500, 3_000]),
    faults=FAULTS,
)
def test_whatever_happens_the_living_settle(
    seed: int, loss: float, delay_ms: int, faults: list[tuple[str, int, float]]
) -> None:
    world = World(seed, loss=loss, group_initial_rebalance_delay_ms=delay_ms)
    add(world, "first")
    for fault, number, seconds in faults:
        alive = [member for member in world.members if member.alive]
        chosen = alive[number % len(alive)] if alive else None
        if fault == "join":
            add(world, f"m{number}")
        elif fault == "join static":
            add(world, f"s{number}", f"i{number}")
        elif fault == "restart":
            world.restart()
        elif chosen is not None and fault == "crash":
            chosen.crash()
        elif chosen is not None and fault == "leave":
            chosen.leave()
        elif chosen is not None and fault == "rejoin":
            chosen.start()
        world.run(seconds)
    world.loss = 0.0
    world.run(400)
    check_settled(world)


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS])
def test_the_check_itself_finds_a_member_left_out(error: ErrorCode) -> None:
    world = World(6, loss=0)
    member = add(world, "a")
    world.run(20)
    member.start_over(error)
    with pytest.raises(AssertionError):
        check_settled(world)
