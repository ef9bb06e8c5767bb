"""The state machine of streams groups (KIP-1071), in simulated time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kclient.errors import (
    ErrorCode,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    UnknownMemberIdError,
)
from kclient.gateway.groups.assignors.tasks import TaskSets
from kclient.gateway.groups.events import Token
from kclient.gateway.groups.streaming.states import StreamsGroupState
from kclient.gateway.groups.streams_beats import QueryEndpoint, StatusCode
from kclient.gateway.rows.keys import GROUPS, MEMBERS
from kclient.gateway.rows.streams_topology import StreamsTopic, Subtopology, Topology
from tests.unit.gateway_groups.streamsbox import COUNTS, PLAIN, StreamsBox, codes

BOTH = {"a": 4, "g-counts-changelog": 4}


def test_who_comes_first_gets_all_tasks() -> None:
    box = StreamsBox()
    result = box.enter("m1")
    assert (result.error, result.epoch, codes(result)) == (0, 2, [])
    assert box.active("m1") == {"0": [0, 1, 2, 3]}
    assert box.state() is StreamsGroupState.STABLE
    assert box.goes_on("m1").tasks is None


def test_tasks_are_given_up_before_others_get_them() -> None:
    box = StreamsBox()
    box.enter("m1")
    assert box.enter("m2").epoch == 3
    assert box.active("m2") == {}
    assert box.state() is StreamsGroupState.RECONCILING
    first = box.goes_on("m1")
    assert first.epoch == 2, "it has not given up what it has to"
    assert sum(map(len, box.active("m1").values())) == 2
    box.once()
    box.goes_on("m2")
    assert box.active("m2") == {}
    assert box.goes_on("m1").epoch == 3
    box.goes_on("m2")
    assert sum(map(len, box.active("m2").values())) == 2
    assert box.state() is StreamsGroupState.STABLE


def test_a_process_has_a_task_once() -> None:
    box = StreamsBox(topics=BOTH, topology=COUNTS, group_streams_num_standby_replicas=1)
    box.enter("m1", "p")
    box.enter("m2", "p")
    box.settle("m1", "m2")
    assert box.standby("m1") == box.standby("m2") == {}
    box.enter("m3", "q")
    box.settle("m1", "m2", "m3")
    box.once()
    active, standby = box.active("m3")["0"], box.standby("m3")["0"]
    assert sorted(active + standby) == [0, 1, 2, 3]
    assert sum(len(box.standby(member).get("0", [])) for member in ("m1", "m2", "m3")) == 4


def test_a_group_waits_for_more_members() -> None:
    box = StreamsBox(group_streams_initial_rebalance_delay_ms=3_000)
    result = box.enter("m1")
    assert codes(result) == [StatusCode.ASSIGNMENT_DELAYED]
    assert (result.epoch, box.active("m1")) == (1, {})
    box.enter("m2")
    box.advance(2.9)
    assert codes(box.goes_on("m1")) == [StatusCode.ASSIGNMENT_DELAYED]
    box.advance(0.2)
    for member in ("m1", "m2"):
        assert codes(box.goes_on(member)) == []
        assert len(box.active(member)["0"]) == 2
    assert box.state() is StreamsGroupState.STABLE


def test_targets_keep_their_distance() -> None:
    box = StreamsBox(group_streams_assignment_interval_ms=1_000)
    box.enter("m1")
    assert codes(box.enter("m2")) == [StatusCode.ASSIGNMENT_DELAYED]
    assert box.state() is StreamsGroupState.ASSIGNING
    box.advance(1.0)
    box.settle("m1", "m2")
    assert len(box.active("m2")["0"]) == 2


def test_internal_topics_that_are_missing_are_asked_for() -> None:
    box = StreamsBox(topology=COUNTS)
    result = box.enter("m1")
    assert codes(result) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert result.missing == (StreamsTopic("g-counts-changelog", 4, 0),)
    assert box.state() is StreamsGroupState.NOT_READY
    assert box.active("m1") == {}
    box.topics.put("g-counts-changelog", 4)
    box.settle("m1")
    assert box.active("m1") == {"0": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ({"b": 1}, StatusCode.MISSING_SOURCE_TOPICS),
        ({"a": 4, "g-counts-changelog": 3}, StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
    ],
)
def test_topics_that_do_not_fit(topics: dict[str, int], code: StatusCode) -> None:
    box = StreamsBox(topics=topics, topology=COUNTS)
    result = box.enter("m1")
    assert codes(result) == [code]
    assert box.state() is StreamsGroupState.NOT_READY
    assert result.missing == ()


def test_tasks_go_with_their_topics_and_come_back() -> None:
    box = StreamsBox()
    box.enter("m1")
    box.topics.drop("a")
    assert codes(box.goes_on("m1")) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert box.active("m1") == {}
    box.topics.put("a", 5)
    box.settle("m1")
    assert box.active("m1") == {"0": [0, 1, 2, 3, 4]}


def test_another_topology_is_refused_and_an_older_one_told() -> None:
    box = StreamsBox(topology=Topology(1, tuple(PLAIN.subtopologies.values())))
    box.enter("m1")
    box.topology = Topology(1, (Subtopology("1", ("a",), (), (), (), ()),))
    with pytest.raises(InvalidRequestError, match="another topology"):
        box.enter("m2")
    assert "m2" not in box.group.members
    box.topology = PLAIN
    assert StatusCode.STALE_TOPOLOGY in codes(box.enter("m3"))


def test_epochs_fence() -> None:
    box = StreamsBox(group_streams_max_size=2)
    with pytest.raises(UnknownMemberIdError):
        box.send(replace(box.entry("m1"), epoch=3, topology=None))
    box.enter("m1")
    for epoch in (1, 3):
        with pytest.raises(FencedMemberEpochError):
            box.send(replace(box.beat("m1"), epoch=epoch))
    box.enter("m2")
    with pytest.raises(GroupMaxSizeReachedError):
        box.enter("m3")
    with pytest.raises(InvalidRequestError, match="no subtopology"):
        box.send(replace(box.beat("m1"), owned=TaskSets({"9": frozenset({0})})))
    with pytest.raises(InvalidRequestError, match="4 tasks"):
        box.send(replace(box.beat("m1"), owned=TaskSets({"0": frozenset({4})})))


def test_an_answer_that_was_lost_is_given_once_more() -> None:
    box = StreamsBox()
    box.enter("m1")
    box.enter("m2")
    box.goes_on("m1")
    lost = replace(box.beat("m1"), owned=box.owned["m1"])
    assert box.replies[box.ask(lost)].epoch == 3
    again = box.send(lost)
    assert again.epoch == 3
    assert again.tasks is not None


def test_who_is_not_heard_of_goes() -> None:
    box = StreamsBox()
    box.enter("m1")
    box.enter("m2")
    box.settle("m1", "m2")
    box.advance(40)
    box.goes_on("m1")
    box.advance(10)
    assert [member.member_id for member in box.group.members] == ["m1"]
    box.settle("m1")
    assert box.active("m1") == {"0": [0, 1, 2, 3]}


def test_who_does_not_give_tasks_up_goes() -> None:
    box = StreamsBox()
    box.enter("m1")
    box.enter("m2")
    box.goes_on("m1")
    for _ in range(3):
        box.advance(4)
        for member in ("m1", "m2"):
            if member in box.group.members:
                box.goes_on(member, full=False)
    assert [member.member_id for member in box.group.members] == ["m2"]
    box.settle("m2")
    assert box.active("m2") == {"0": [0, 1, 2, 3]}


def test_who_leaves_is_told_when_that_is_stored() -> None:
    box = StreamsBox()
    box.enter("m1")
    box.hold = True
    token = box.ask(replace(box.beat("m1"), epoch=-1))
    assert token not in box.replies
    box.finish_stores()
    assert box.replies[token].error == 0
    assert box.state() is StreamsGroupState.EMPTY
    assert [key for key in box.rows if key.startswith(MEMBERS)] == []


def test_all_are_told_to_end() -> None:
    box = StreamsBox()
    box.enter("m1")
    box.enter("m2")
    box.send(replace(box.beat("m1"), shutdown=True))
    assert StatusCode.SHUTDOWN_APPLICATION in codes(box.goes_on("m2"))
    box.send(replace(box.beat("m1"), epoch=-1))
    box.send(replace(box.beat("m2"), epoch=-1))
    assert codes(box.enter("m3")) == []


def test_endpoints_are_told_with_their_partitions() -> None:
    box = StreamsBox(topics=BOTH, topology=COUNTS)
    first = box.send(replace(box.entry("m1"), endpoint=QueryEndpoint("h", 1)))
    assert first.placed is not None
    assert [dict(each.active) for each in first.placed] == [{"a": [0, 1, 2, 3]}]
    known = replace(box.beat("m1"), endpoints_epoch=first.endpoints_epoch)
    assert box.send(known).placed is None
    box.enter("m2")
    box.settle("m1", "m2")
    told = box.send(replace(box.beat("m1"), endpoints_epoch=first.endpoints_epoch))
    assert told.placed is not None
    assert [sorted(each.active) for each in told.placed] == [["a"]]
    assert len(told.placed[0].active["a"]) == 2


def test_a_restart_loses_nothing() -> None:
    box = StreamsBox(topics=BOTH, topology=COUNTS, group_streams_num_standby_replicas=1)
    box.enter("m1")
    box.enter("m2")
    box.settle("m1", "m2")
    before = box.group.snapshot(), [each.assigned for each in box.group.members]
    box.restart()
    assert (box.group.snapshot(), [each.assigned for each in box.group.members]) == before
    assert box.state() is StreamsGroupState.STABLE
    for member in ("m1", "m2"):
        result = box.goes_on(member)
        assert (result.epoch, result.tasks) == (box.epochs[member], None)
    assert box.group.snapshot() == before[0]


def test_what_could_not_be_stored_is_told_again() -> None:
    box = StreamsBox()
    box.hold = True
    token = box.ask(box.entry("m1"))
    box.finish_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.replies[token].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    box.hold = False
    box.advance(1)
    result = box.enter("m1")
    assert result.error == 0
    assert box.active("m1") == {"0": [0, 1, 2, 3]}
    assert any(key.startswith(GROUPS) for key in box.rows)


def test_a_target_that_takes_long_is_waited_for() -> None:
    box = StreamsBox()
    box.slow = True
    token = box.ask(box.entry("m1"))
    assert token not in box.replies
    box.finish_work()
    assert box.told("m1", token).tasks is not None
    assert box.active("m1") == {"0": [0, 1, 2, 3]}


def test_another_number_of_standby_tasks_makes_another_target() -> None:
    box = StreamsBox(topics=BOTH, topology=COUNTS)
    box.enter("m1")
    box.enter("m2")
    box.settle("m1", "m2")
    box.group.settings = replace(box.settings, group_streams_num_standby_replicas=1)
    box.settle("m1", "m2")
    assert sum(len(box.standby(member).get("0", [])) for member in ("m1", "m2")) == 4
    box.once()


def test_what_was_looked_for_before_counts_until_topics_change() -> None:
    box = StreamsBox(topics={"a": 4})
    before = box.look(PLAIN)
    box.topics.put("a", 6)
    box.topics.put("a", 8)
    box.run(box.group.heartbeat(box.entry("m1"), Token(), box.topics, box.now, before))
    assert box.group.configured is not None
    assert box.group.configured.tasks == {"0": 8}
    box.topics.drop("a")
    missing = box.look(PLAIN)
    box.run(box.group.heartbeat(box.entry("m1"), Token(), box.topics, box.now, missing))
    assert box.group.configured.fault is not None
    assert box.group.knows(box.topics)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_task_is_worked_on_once(seed: int) -> None:
    chance = random.Random(seed)
    box = StreamsBox(topics=BOTH, topology=COUNTS, group_streams_num_standby_replicas=chance.randrange(3))
    box.looks = seed % 2 == 0
    alive: list[str] = []
    for turn in range(120):
        what = chance.random()
        if what < 0.15 or not alive:
            name = f"m{turn}"
            box.enter(name, f"p{chance.randrange(4)}")
            alive.append(name)
        elif what < 0.22:
            gone = alive.pop(chance.randrange(len(alive)))
            box.send(replace(box.beat(gone), epoch=-1))
        elif what < 0.26:
            box.restart()
        elif what < 0.28:
            count = box.topics.by_name["a"].partitions + 1
            box.topics.put("a", count)
            box.topics.put("g-counts-changelog", count)
        else:
            box.goes_on(chance.choice(alive))
        box.once()
    for _ in range(12):
        box.settle(*alive)
    count = box.topics.by_name["a"].partitions
    assert sorted(number for member in alive for number in box.active(member).get("0", [])) == list(range(count))
    assert box.state() is StreamsGroupState.STABLE
    box.once()
