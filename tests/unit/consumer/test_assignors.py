"""Properties that every assignor keeps, and the moves of the sticky ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.consumer.group.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
    common_protocol,
)
from kclient.consumer.group.assignors.sticky import decode_user_data, encode_user_data
from kclient.types import TopicPartition

ALL: list[type[Assignor]] = [RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor]
TOPICS = ["a", "b", "c", "d"]

topic_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
wanted = st.sets(st.sampled_from([*TOPICS, "missing"]), min_size=1).map(lambda topics: tuple(sorted(topics)))
some_members = st.dictionaries(st.sampled_from([f"m{n}" for n in range(9)]), wanted, min_size=1)
Assigned = dict[str, list[TopicPartition]]


def subscriptions(members: dict[str, tuple[str, ...]]) -> dict[str, Subscription]:
    return {member: Subscription(topics) for member, topics in members.items()}


def assign(assignor: Assignor, counts: dict[str, int], members: dict[str, Subscription]) -> Assigned:
    return {member: list(partitions) for member, partitions in assignor.assign(counts, members).items()}


def rebalance(
    assignor: CooperativeStickyAssignor, counts: dict[str, int], wants: dict[str, tuple[str, ...]], owned: Assigned
) -> tuple[Assigned, int]:
    """Rebalance until nobody has to give anything up; returns the end and the number of rounds."""
    for generation in range(10):
        members = {
            member: Subscription(topics, None, tuple(owned.get(member, ())), generation)
            for member, topics in wants.items()
        }
        assigned = assign(assignor, counts, members)
        readers = [partition for partitions in assigned.values() for partition in partitions]
        assert len(readers) == len(set(readers))
        for one, other in combinations(wants, 2):  # nobody gets what another still reads
            assert not set(assigned[one]) & (set(owned.get(other, ())) - set(owned.get(one, ())))
        given_up = any(set(owned.get(member, ())) - set(assigned[member]) for member in wants)
        owned = assigned
        if not given_up:
            return owned, generation + 1
    raise AssertionError("the group never came to rest")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
@given(topic_counts, some_members)
def test_every_wanted_partition_has_exactly_one_reader(
    kind: type[Assignor], counts: dict[str, int], wants: dict[str, tuple[str, ...]]
) -> None:
    assigned = assign(kind(), counts, subscriptions(wants))
    assert set(assigned) == set(wants)
    readers = [partition for partitions in assigned.values() for partition in partitions]
    expected = {
        TopicPartition(topic, number)
        for topic, count in counts.items()
        if any(topic in topics for topics in wants.values())
        for number in range(count)
    }
    assert len(readers) == len(set(readers))
    assert set(readers) == expected
    for member, partitions in assigned.items():
        assert {partition.topic for partition in partitions} <= set(wants[member])


@pytest.mark.parametrize("kind", [RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor])
@given(topic_counts, st.integers(1, 9))
def test_equal_subscriptions_are_served_evenly(kind: type[Assignor], counts: dict[str, int], members: int) -> None:
    assigned = assign(kind(), counts, {f"m{n}": Subscription(tuple(TOPICS)) for n in range(members)})
    sizes = [len(partitions) for partitions in assigned.values()]
    assert max(sizes) - min(sizes) <= 1


@given(topic_counts, some_members, some_members)
def test_sticky_comes_to_rest_balanced_when_the_group_changes(
    counts: dict[str, int], before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> None:
    assignor = CooperativeStickyAssignor()
    owned, _ = rebalance(assignor, counts, before, {})
    owned = {
        member: [partition for partition in partitions if partition.topic in after.get(member, ())]
        for member, partitions in owned.items()
    }
    owned, _ = rebalance(assignor, counts, after, owned)
    readers = {partition for partitions in owned.values() for partition in partitions}
    assert len(readers) == sum(
        count for topic, count in counts.items() if any(topic in topics for topics in after.values())
    )
    again, rounds = rebalance(assignor, counts, after, owned)
    assert again.keys() == owned.keys()
    assert all(sorted(again[member]) == sorted(owned[member]) for member in owned)  # nothing moves without a cause
    assert rounds == 1


def test_sticky_goes_on_moving_until_nobody_has_two_more_than_another_reader() -> None:
    """One partition after the other: what moves first makes it worth while to move the next."""
    members = {
        "m0": Subscription(("a",), encode_user_data([], 1)),
        "m1": Subscription(("a", "b"), encode_user_data([TopicPartition("b", 1)], 1)),
        "m2": Subscription(("a", "b"), encode_user_data([TopicPartition("a", 0), TopicPartition("b", 3)], 1)),
    }
    assigned = assign(StickyAssignor(), {"a": 1, "b": 4}, members)
    assert {member: len(partitions) for member, partitions in assigned.items()} == {"m0": 1, "m1": 2, "m2": 2}


@given(topic_counts, st.integers(2, 8))
def test_sticky_moves_only_what_a_lost_member_had(counts: dict[str, int], members: int) -> None:
    assignor = CooperativeStickyAssignor()
    wants = {f"m{n}": tuple(TOPICS) for n in range(members)}
    owned, _ = rebalance(assignor, counts, wants, {})
    gone = wants.pop("m0")
    assert gone
    now, rounds = rebalance(assignor, counts, wants, owned)
    assert rounds == 1  # nobody had to give anything up
    for member in wants:
        assert set(owned[member]) <= set(now[member])


@given(topic_counts, st.integers(1, 8))
def test_sticky_moves_no_more_than_a_new_member_gets(counts: dict[str, int], members: int) -> None:
    assignor = CooperativeStickyAssignor()
    wants = {f"m{n}": tuple(TOPICS) for n in range(members)}
    owned, _ = rebalance(assignor, counts, wants, {})
    now, rounds = rebalance(assignor, counts, {**wants, "new": tuple(TOPICS)}, owned)
    assert rounds <= 2
    for member in wants:
        assert set(now[member]) <= set(owned[member])
    sizes = [len(partitions) for partitions in now.values()]
    assert max(sizes) - min(sizes) <= 1


def test_range_gives_equal_topics_alike() -> None:
    members = {f"m{n}": Subscription(("a", "b")) for n in range(2)}
    assigned = RangeAssignor().assign({"a": 3, "b": 3}, members)
    assert assigned["m0"] == [TopicPartition(topic, number) for topic in "ab" for number in (0, 1)]
    assert assigned["m1"] == [TopicPartition(topic, 2) for topic in "ab"]


def test_static_members_keep_their_place_under_a_new_member_id() -> None:
    def of(first: str, second: str) -> Assigned:
        members = {
            first: Subscription(("a",), group_instance_id="one"),
            second: Subscription(("a",), group_instance_id="two"),
        }
        return assign(RangeAssignor(), {"a": 3}, members)

    assert of("x", "y")["x"] == of("z", "y")["z"] == [TopicPartition("a", 0), TopicPartition("a", 1)]


def test_a_newer_generation_wins_and_one_generation_contradicting_itself_is_not_believed() -> None:
    mine = (TopicPartition("a", 0),)
    newer = {"old": Subscription(("a",), None, mine, 1), "new": Subscription(("a",), None, mine, 2)}
    assert CooperativeStickyAssignor().assign({"a": 2}, newer)["new"] == [TopicPartition("a", 0)]
    same = {"one": Subscription(("a",), None, mine, 2), "two": Subscription(("a",), None, mine, 2)}
    assigned = CooperativeStickyAssignor().assign({"a": 2}, same)
    assert [*assigned["one"], *assigned["two"]] == [TopicPartition("a", 1)]


def test_the_generation_is_read_from_the_user_data_of_older_members() -> None:
    first = CooperativeStickyAssignor()
    first.on_assignment([], None, 9)
    mine = (TopicPartition("a", 0),)
    members = {
        "old": Subscription(("a",), None, mine, 8),
        "new": Subscription(("a",), first.subscription_user_data(["a"]), mine, -1),
        "broken": Subscription(("a",), b"\x00", mine, -1),
    }
    assert TopicPartition("a", 0) in CooperativeStickyAssignor().assign({"a": 3}, members)["new"]


@given(
    st.lists(st.builds(TopicPartition, st.text(max_size=20), st.integers(0, 2**31 - 1)), unique=True),
    st.integers(-1, 99),
)
def test_sticky_user_data_round_trip(partitions: list[TopicPartition], generation: int) -> None:
    found, decoded = decode_user_data(encode_user_data(partitions, generation))
    assert sorted(found) == sorted(partitions)
    assert decoded == generation


@given(st.binary(max_size=64))
def test_garbage_in_the_user_data_is_ignored(data: bytes) -> None:
    members = {"one": Subscription(("a",), data), "two": Subscription(("a",))}
    assert sum(map(len, StickyAssignor().assign({"a": 4}, members).values())) >= 4


def test_sticky_remembers_through_its_user_data() -> None:
    one, two = StickyAssignor(), StickyAssignor()
    assert one.subscription_user_data(["a"]) is None
    one.on_assignment([TopicPartition("a", 3)], None, 1)
    two.on_assignment([TopicPartition("a", 0)], None, 1)
    members = {
        "one": Subscription(("a",), one.subscription_user_data(["a"])),
        "two": Subscription(("a",), two.subscription_user_data(["a"])),
    }
    assigned = StickyAssignor().assign({"a": 4}, members)
    assert TopicPartition("a", 3) in assigned["one"]
    assert TopicPartition("a", 0) in assigned["two"]


def test_the_common_protocol_is_the_best_all_support() -> None:
    assert common_protocol([CooperativeStickyAssignor()]) is RebalanceProtocol.COOPERATIVE
    assert common_protocol([RangeAssignor(), CooperativeStickyAssignor()]) is RebalanceProtocol.EAGER

    class Strict(RangeAssignor):
        protocols = (RebalanceProtocol.COOPERATIVE,)

    with pytest.raises(ValueError, match=r"partition\.assignment\.strategy"):
        common_protocol([Strict(), RangeAssignor()])


def test_a_kind_of_range_assignor_that_decides_itself_is_asked_where_there_are_racks_too() -> None:
    class Everything(RangeAssignor):
        def assign(
            self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
        ) -> Mapping[str, Sequence[TopicPartition]]:
            return {min(members): [TopicPartition("a", 0)]}

    members = {"one": Subscription(("a",), rack_id="x"), "two": Subscription(("a",), rack_id="y")}
    racks = {"a": [{"y"}, {"x"}]}
    assert Everything().assign_by_racks({"a": 2}, members, racks) == {"one": [TopicPartition("a", 0)]}
    assert RangeAssignor().assign_by_racks({"a": 2}, members, racks)["one"] == [TopicPartition("a", 1)]
