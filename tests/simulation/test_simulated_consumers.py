"""Whole groups of our consumers in simulated time."""

from __future__ import annotations

import pytest

from kclient.consumer.group.assignors import Assignor, CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor
from kclient.errors import CommitFailedError, FencedInstanceIdError
from kclient.types import TopicPartition
from tests.simulation.seeds import blocks
from tests.simulation.simulated_consumers import SimulatedConsumer, World

KINDS: list[type[Assignor]] = [RangeAssignor, RoundRobinAssignor, CooperativeStickyAssignor]
COUNTS = {"a": 6, "b": 5}


def consumer(world: World, name: str, kind: type[Assignor] = RangeAssignor, **options: object) -> SimulatedConsumer:
    topics = options.pop("topics", {"a", "b"})
    return SimulatedConsumer(world, name, [kind()], topics, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_members_come_and_go_and_no_partition_ever_has_two_readers(kind: type[Assignor], seed: int) -> None:
    world = World(seed, COUNTS)
    first = consumer(world, "one", kind)
    world.run_until(world.settled)
    assert len(first.owned) == 11
    second, third = consumer(world, "two", kind), consumer(world, "three", kind, poll_every=2.0)
    world.run_until(world.settled)
    assert min(len(first.owned), len(second.owned), len(third.owned)) >= 3
    first.close()
    world.run_until(world.settled)
    assert len(second.owned) + len(third.owned) == 11
    generation = world.group.generation
    world.run(300)
    assert world.group.generation == generation  # a quiet group stays quiet
    assert second.beats > 90


@pytest.mark.parametrize("kind", KINDS)
def test_a_crashed_member_is_replaced_when_its_session_is_over(kind: type[Assignor]) -> None:
    world = World(1, COUNTS)
    one, two = consumer(world, "one", kind), consumer(world, "two", kind)
    world.run_until(world.settled)
    one.crash()
    world.run_until(world.settled, limit=60)
    assert len(two.owned) == 11


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_groups_recover_from_a_lossy_network_and_restarting_brokers(kind: type[Assignor], seed: int) -> None:
    world = World(seed, COUNTS, loss=0.1)
    for number in range(4):
        consumer(world, f"c{number}", kind, poll_every=0.3 * (number + 1))
        world.run(world.random.uniform(0, 5))
    for _ in range(3):
        world.restart()
        world.run(world.random.uniform(0.1, 20))
    world.living[0].close()
    world.run(20)
    world.loss = 0.0
    world.run_until(world.settled, limit=200)
    assert not any(member.errors for member in world.living)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_groups_recover_from_coordinators_that_move_and_hang(kind: type[Assignor], seed: int) -> None:
    moving(seed, kind)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", blocks(4), ids=str)
def test_groups_recover_in_hundreds_of_clusters(kind: type[Assignor], seeds: range) -> None:
    for seed in seeds:
        moving(seed, kind)


def moving(seed: int, kind: type[Assignor]) -> None:
    """Members whose coordinator moves and hangs, on connections that break and take their time; their commits are
    answered when the member is somebody else."""
    world = World(seed, COUNTS, loss=0.1 if seed % 2 else 0.0)
    world.strict = False
    for number in range(3):
        consumer(world, f"c{number}", kind, poll_every=0.3 * (number + 1), pattern=seed % 3 == 0, max_poll_interval=300)
        world.run(world.random.uniform(0, 5))
    for _ in range(6):
        world.move(hangs=world.random.random() < 0.5)
        for member in world.living:
            if world.random.random() < 0.5:
                member.commit()
            if world.random.random() < 0.1:
                member.machine.leave("unsubscribed")
                member.owned = set()
                member.machine.subscribe(member.topics)
        world.run(world.random.uniform(0.1, 30))
    world.loss = 0.0
    # a hung coordinator is noticed when a request or the question about it is not answered in time
    world.run_until(world.settled, limit=60)
    assert not any(member.errors for member in world.living)
    world.run(20)  # cooperative members may have one more round to go
    generation = world.group.generation
    world.run(60)
    assert world.settled()
    assert world.group.generation == generation


@pytest.mark.parametrize("seed", range(5))
def test_a_new_topic_that_matches_a_pattern_rebalances_the_group_once(seed: int) -> None:
    world = World(seed, {"a": 6})
    members = [consumer(world, f"c{number}", pattern=True) for number in range(3)]
    world.run_until(world.settled)
    generation = world.group.generation
    world.counts = {"a": 6, "b": 5}
    members[seed % 3].learn()  # it is the first to fetch metadata; the others would in minutes
    world.run_until(world.settled)
    assert sum(len(member.owned) for member in members) == 11
    world.run(30)
    for member in members:
        member.learn()
    world.run(30)
    assert world.group.generation == generation + 1


def test_cooperative_members_keep_what_they_keep_while_the_group_rebalances() -> None:
    world = World(3, COUNTS)
    one = consumer(world, "one", CooperativeStickyAssignor)
    world.run_until(world.settled)
    kept = set(one.owned)
    two = consumer(world, "two", CooperativeStickyAssignor)
    least = len(one.owned)
    while not (world.settled() and two.owned):
        world.run(0.05)
        least = min(least, len(one.owned))
    assert least == len(one.owned) == 6  # never less than in the end
    assert one.owned < kept
    assert [what for what, _ in one.events] == ["assigned", "revoked"]
    assert sorted(two.events[0][1]) == sorted(kept - one.owned)


def test_eager_members_give_everything_up_first() -> None:
    world = World(3, COUNTS)
    one = consumer(world, "one", RangeAssignor)
    world.run_until(world.settled)
    consumer(world, "two", RangeAssignor)
    world.run_until(lambda: world.settled() and len(world.consumers[1].owned) > 0)
    assert [what for what, _ in one.events] == ["assigned", "revoked", "assigned"]
    assert len(one.events[1][1]) == 11


def test_new_partitions_are_noticed_by_the_leader() -> None:
    world = World(4, COUNTS)
    one, two = consumer(world, "one"), consumer(world, "two")
    world.run_until(world.settled)
    world.learn({"a": 8, "b": 5})
    world.run_until(world.settled)
    assert len(one.owned) + len(two.owned) == 13


def test_a_changed_subscription_rebalances() -> None:
    world = World(5, COUNTS)
    one, two = consumer(world, "one"), consumer(world, "two", topics={"a"})
    world.run_until(world.settled)
    assert all(tp.topic == "a" for tp in two.owned)
    two.subscribe({"b"})
    world.run_until(world.settled)
    assert all(tp.topic == "b" for tp in two.owned)
    assert {tp for tp in one.owned if tp.topic == "a"} == {TopicPartition("a", n) for n in range(6)}


def test_a_slow_user_is_put_out_of_the_group_and_comes_back() -> None:
    world = World(6, COUNTS)
    world.strict = False  # who does not poll does not learn that others read its partitions
    slow, other = consumer(world, "slow"), consumer(world, "other")
    world.run_until(world.settled)
    polls, slow.poll_every = slow.poll_every, 200.0
    world.run_until(lambda: len(other.owned) == 11, limit=150)
    assert slow.owned  # it does not know yet
    with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms is 30000") as caught:
        slow.machine.commit_identity()
    assert "max.poll.records" in str(caught.value)
    world.run_until(lambda: "lost" in [what for what, _ in slow.events], limit=400)
    slow.poll_every = polls
    world.run_until(world.settled, limit=400)
    assert slow.owned
    assert other.owned


def test_a_static_member_that_restarts_causes_no_rebalance() -> None:
    world = World(7, COUNTS)
    one = consumer(world, "one", instance_id="i-1")
    two = consumer(world, "two", instance_id="i-2")
    world.run_until(world.settled)
    before, generation = set(one.owned), world.group.generation
    one.close()
    again = consumer(world, "one", instance_id="i-1")
    world.run_until(lambda: world.settled() and bool(again.owned))
    assert again.owned == before
    assert world.group.generation == generation
    assert two.owned.isdisjoint(before)


def test_a_second_consumer_with_the_same_instance_id_fences_the_first() -> None:
    world = World(8, COUNTS)
    world.strict = False
    one = consumer(world, "one", instance_id="i-1")
    world.run_until(world.settled)
    two = consumer(world, "two", instance_id="i-1")
    world.run_until(lambda: bool(one.errors), limit=60)
    assert isinstance(one.errors[0], FencedInstanceIdError)
    assert "group.instance.id" in str(one.errors[0])
    assert two.settled


def test_members_without_a_common_assignor_say_so() -> None:
    world = World(9, COUNTS)
    one = consumer(world, "one", RangeAssignor)
    world.run_until(world.settled)
    two = consumer(world, "two", RoundRobinAssignor)
    world.run_until(lambda: bool(two.errors), limit=60)
    assert "partition.assignment.strategy" in str(two.errors[0])
    assert one.settled
