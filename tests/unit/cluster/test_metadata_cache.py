"""The metadata cache merges answers and says when to ask again; time is a number here."""

from __future__ import annotations

from math import inf

import pytest

from kclient.cluster import Backoff, MetadataCache, topic_error
from kclient.errors import ErrorCode, TopicAuthorizationError
from kclient.protocol.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kclient.types import Node, TopicPartition

ID_A = b"a" * 16
ID_B = b"b" * 16
TP = TopicPartition("t", 0)


def partition(index: int = 0, leader: int = 1, epoch: int = 0) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=index, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1]
    )


def topic(
    name: str = "t", *partitions: MetadataResponsePartition, topic_id: bytes = ID_A, code: int = 0
) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=name, topic_id=topic_id, error_code=code, partitions=list(partitions))


def answer(*topics: MetadataResponseTopic, brokers: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"host{n}", port=9092) for n in brokers],
        cluster_id="cluster",
        controller_id=1,
        topics=list(topics),
    )


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache(max_age=300, max_idle=60, backoff=Backoff(100, 1000, jitter=0.0))


def learn(
    cache: MetadataCache, *topics: MetadataResponseTopic, now: float = 0.0, asked: list[str] | None = None
) -> None:
    names = [t.name or "" for t in topics] if asked is None else asked
    cache.track(names, now)
    cache.begin_update(now)
    cache.update(answer(*topics), now, asked=names)


def test_the_snapshot_says_what_the_answer_said(cache: MetadataCache) -> None:
    before = cache.snapshot
    learn(cache, topic("t", partition(0, 1, 5), partition(1, 2, 6)))
    snapshot = cache.snapshot
    assert before.topics == {}
    assert (snapshot.cluster_id, snapshot.controller) == ("cluster", Node(1, "host1", 9092))
    assert snapshot.leader(TopicPartition("t", 1)) == Node(2, "host2", 9092)
    assert snapshot.leader_epoch(TP) == 5
    assert snapshot.topic_id("t") == ID_A
    assert snapshot.names == {ID_A: "t"}
    assert snapshot.partition_count("t") == 2
    infos = snapshot.partitions_for("t")
    assert [info.partition for info in infos] == [0, 1]
    assert infos[0].replicas == (Node(1, "host1", 9092), Node(2, "host2", 9092))


def test_an_unknown_topic_is_unknown_everywhere(cache: MetadataCache) -> None:
    snapshot = cache.snapshot
    assert snapshot.partitions_for("t") == []
    assert snapshot.partition_count("t") == 0
    assert (snapshot.leader(TP), snapshot.leader_id(TP), snapshot.leader_epoch(TP)) == (None, None, None)


def test_a_replica_on_a_dead_broker_keeps_its_id(cache: MetadataCache) -> None:
    cache.update(answer(topic("t", partition()), brokers=(1,)), 0.0, asked=None)
    assert cache.snapshot.partitions_for("t")[0].replicas[1] == Node(2, "", -1)


def test_a_lagging_broker_does_not_bring_an_old_leader_back(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition(0, leader=2, epoch=7)))
    learn(cache, topic("t", partition(0, leader=1, epoch=6)))
    assert cache.snapshot.leader_id(TP) == 2
    learn(cache, topic("t", partition(0, leader=1, epoch=8)))
    assert cache.snapshot.leader_id(TP) == 1


def test_a_topic_made_anew_starts_with_its_own_epochs(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition(0, leader=2, epoch=7)))
    learn(cache, topic("t", partition(0, leader=1, epoch=0), topic_id=ID_B))
    assert cache.snapshot.leader_id(TP) == 1
    assert cache.snapshot.names == {ID_B: "t"}


def test_other_topics_stay_unless_all_were_asked_for(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), topic("u", partition(), topic_id=ID_B))
    learn(cache, topic("t", partition()))
    assert set(cache.snapshot.topics) == {"t", "u"}
    cache.update(answer(topic("t", partition())), 0.0, asked=None)
    assert set(cache.snapshot.topics) == {"t"}


def test_a_deleted_topic_is_forgotten_and_asked_for_again(cache: MetadataCache) -> None:
    cache.track(["t"], 0.0)
    learn(cache, topic("t", partition()))
    learn(cache, topic("t", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert "t" not in cache.snapshot.topics
    assert topic_error(cache.snapshot, "t") is not None
    assert cache.next_update(0.0) == pytest.approx(0.1), "after the back-off"
    learn(cache, topic("t", partition()))
    assert topic_error(cache.snapshot, "t") is None


def test_a_topic_that_is_not_ours_names_itself_in_the_error(cache: MetadataCache) -> None:
    cache.track(["t"], 0.0)
    learn(cache, topic("t", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    error = topic_error(cache.snapshot, "t")
    assert isinstance(error, TopicAuthorizationError)
    assert "'t'" in str(error)
    assert cache.next_update(0.0) == 300.0, "asking again does not help"


def test_leaders_named_in_an_answer_are_taken_over(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition(0, leader=1, epoch=3)))
    assert cache.update_leaders({TP: (1, 3)}, asked={}) == set(), "not newer"
    assert cache.update_leaders({TP: (9, 4)}, asked={}) == set(), "a broker that nobody knows"
    assert cache.update_leaders({TP: (9, 4)}, [Node(9, "host9", 9092)], asked={ID_A: "t"}) == {TP}
    assert cache.snapshot.leader(TP) == Node(9, "host9", 9092)
    assert cache.update_leaders({TopicPartition("other", 0): (1, 9)}, asked={}) == set()


def test_leaders_of_a_topic_that_was_made_anew_meanwhile_are_not_its_namesakes(cache: MetadataCache) -> None:
    """Else their epochs hold the namesake's own, which begin anew, for out of date: it never gets a leader again."""
    learn(cache, topic("t", partition(0, leader=1, epoch=5)))
    learn(cache, topic("t", partition(0, leader=1, epoch=0), topic_id=ID_B))
    assert cache.update_leaders({TP: (2, 6)}, asked={ID_A: "t"}) == set()
    learn(cache, topic("t", partition(0, leader=1, epoch=1), topic_id=ID_B))
    assert (cache.snapshot.leader_id(TP), cache.snapshot.leader_epoch(TP)) == (1, 1)
    assert cache.update_leaders({TP: (2, 2)}, asked={ID_B: "t"}) == {TP}
    assert cache.update_leaders({TP: (1, 3)}, asked={bytes(16): "t"}) == {TP}, "brokers that tell no ids"


# --------------------------------------------------------------------------- when to ask


def test_asks_at_once_then_by_age(cache: MetadataCache) -> None:
    assert cache.next_update(10.0) == 10.0
    learn(cache, now=10.0)
    assert cache.next_update(11.0) == 310.0


def test_a_request_for_news_waits_for_the_back_off(cache: MetadataCache) -> None:
    learn(cache, now=10.0)
    cache.request_update()
    assert cache.next_update(10.0) == pytest.approx(10.1)
    assert cache.next_update(10.5) == 10.5
    cache.request_update(urgent=True)
    assert cache.next_update(10.0) == 10.0


def test_a_new_topic_is_urgent_and_a_known_one_is_not(cache: MetadataCache) -> None:
    learn(cache, now=10.0)
    assert cache.track(["t"], 10.0)
    assert cache.next_update(10.0) == 10.0
    learn(cache, topic("t", partition()), now=10.0)
    assert not cache.track(["t"], 10.0)
    assert cache.next_update(10.0) > 11.0


def test_new_topics_are_asked_for_alone(cache: MetadataCache) -> None:
    """KIP-526: a producer to very many topics would ask for ever more of them again and again."""
    learn(cache, topic("t", partition()), now=10.0)
    cache.track(["u", "v"], 11.0)
    assert cache.next_update(11.0) == 11.0
    assert cache.begin_update(11.0) == ["u", "v"]
    cache.update(answer(topic("u", partition()), topic("v", partition())), 11.0, asked=["u", "v"])
    assert set(cache.snapshot.topics) == {"t", "u", "v"}
    assert cache.next_update(12.0) == 310.0, "the others are as old as they were"
    assert cache.begin_update(310.0) == ["t", "u", "v"]


def test_new_topics_are_asked_for_with_the_others_where_those_are_due(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    cache.request_update()
    cache.track(["u"], 10.0)
    assert cache.begin_update(10.05) == ["u"], "amid the back-off of the others"
    cache.update(answer(topic("u", partition())), 10.05, asked=["u"])
    cache.track(["v"], 10.2)
    assert cache.begin_update(10.2) == ["t", "u", "v"]
    cache.update(answer(topic("t", partition())), 10.2, asked=["t", "u", "v"])
    cache.request_update(urgent=True)
    cache.track(["w"], 10.2)
    assert cache.begin_update(10.2) == ["t", "u", "v", "w"]


def test_new_topics_are_asked_for_with_all_where_all_are_of_interest(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    cache.all_topics = True
    cache.track(["u"], 10.0)
    assert cache.begin_update(10.0) is None


def test_a_new_topic_without_interest_any_more_is_not_asked_for(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    cache.track(["u"], 11.0)
    cache.track_only(["t"], 11.0)
    assert cache.next_update(11.0) == 310.0


def test_new_topics_that_are_missing_are_asked_for_again_alone(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    now = 11.0
    waits = []
    cache.track(["u"], now)
    for lacking in (
        topic("u", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        topic("u", code=ErrorCode.LEADER_NOT_AVAILABLE),
        topic("u", partition(0, leader=-1)),
        topic("u"),
        None,
    ):
        assert cache.begin_update(now) == ["u"]
        cache.update(answer() if lacking is None else answer(lacking), now, asked=["u"])
        waits.append(cache.next_update(now) - now)
        now = cache.next_update(now)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert cache.begin_update(now) == ["u"]
    cache.update(answer(topic("u", partition())), now, asked=["u"])
    assert cache.next_update(now) == 310.0, "how it stands with the others is not known"


def test_new_topics_that_were_asked_for_in_vain_are_asked_for_again_alone(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    cache.track(["u"], 12.0)
    assert cache.begin_update(12.0) == ["u"]
    cache.fail_update(12.0)
    assert cache.failures == 1
    assert cache.next_update(12.0) == pytest.approx(12.1)
    cache.track(["v"], 12.0)
    assert cache.begin_update(12.0) == ["v"], "which does not hasten the other"
    cache.update(answer(topic("v", partition())), 12.0, asked=["v"])
    assert cache.begin_update(12.2) == ["u"]


def test_a_topic_that_is_missing_does_not_have_the_known_ones_described_again(cache: MetadataCache) -> None:
    missing = topic("u", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    learn(cache, topic("t", partition()), missing, now=10.0)
    assert cache.next_update(10.0) == pytest.approx(10.1)
    assert cache.begin_update(10.1) == ["u"]
    cache.update(answer(missing), 10.1, asked=["u"])
    cache.track_only(["t"], 10.2)
    assert cache.next_update(10.2) == 310.0, "nobody wants to know any more"


def test_of_all_topics_all_are_asked_for_again_while_one_has_no_leader(cache: MetadataCache) -> None:
    cache.all_topics = True
    cache.begin_update(10.0)
    cache.update(answer(topic("t", partition(0, leader=-1))), 10.0, asked=None)
    assert cache.next_update(10.0) == pytest.approx(10.1)
    assert cache.begin_update(10.1) is None


def test_a_stream_of_missing_topics_does_not_put_the_known_ones_off(cache: MetadataCache) -> None:
    """A producer that got new, missing topics all the time never learned of leaders that had moved."""
    learn(cache, topic("t", partition()), now=10.0)
    cache.request_update()
    asked = []
    for number in range(100):
        now = 10.01 + number / 100
        name = f"missing-{number}"
        cache.track([name], now)
        while cache.next_update(now) <= now:
            topics = cache.begin_update(now)
            assert topics is not None
            asked.append(topics)
            lacking = [topic(n, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for n in topics if n != "t"]
            known = [topic("t", partition())] if "t" in topics else []
            cache.update(answer(*known, *lacking), now, asked=topics)
    assert sum("t" in topics for topics in asked) == 1
    assert next(position for position, topics in enumerate(asked) if "t" in topics) < 15
    assert len(asked) <= 100 + 12, "each once at once, and those that are repeated together, ten times a second"


def test_an_answer_of_new_topics_is_none_for_who_wants_everything_anew(cache: MetadataCache) -> None:
    """`Cluster.refresh` goes by it."""
    learn(cache, topic("t", partition()), now=10.0)
    wanted = cache.begun + 1
    cache.request_update(urgent=True)
    assert cache.begin_update(10.0) == ["t"]
    cache.fail_update(10.0)
    cache.track(["u"], 10.01)
    assert cache.begin_update(10.01) == ["u"]
    cache.update(answer(topic("u", partition())), 10.01, asked=["u"])
    assert cache.answered < wanted
    assert cache.begin_update(10.3) == ["t", "u"]
    cache.update(answer(topic("t", partition()), topic("u", partition())), 10.3, asked=["t", "u"])
    assert cache.answered >= wanted


def test_names_go_by_the_newest_ids_where_few_topics_were_asked_for(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    cache.track(["u"], 11.0)
    cache.begin_update(11.0)
    again = topic("t", partition(), topic_id=b"c" * 16)
    cache.update(answer(topic("u", partition(), topic_id=ID_B), again), 11.0, asked=["u"])
    assert cache.snapshot.names == {ID_B: "u", b"c" * 16: "t"}


def test_a_topic_that_was_refused_is_asked_for_anew_but_not_in_a_tight_loop(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=10.0)
    refused = topic("u", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cache.track(["u"], 11.0)
    cache.begin_update(11.0)
    cache.update(answer(refused), 11.0, asked=["u"])
    assert cache.next_update(11.0) == 310.0
    assert not cache.ask_anew(["t"], 12.0), "it was not refused"
    assert cache.ask_anew(["t", "u"], 12.0)
    assert topic_error(cache.snapshot, "u") is None, "it was the answer to an earlier question"
    assert cache.next_update(12.0) == 12.0
    assert cache.begin_update(12.0) == ["u"]
    cache.update(answer(refused), 12.0, asked=["u"])
    assert cache.ask_anew(["u"], 12.0)
    assert cache.next_update(12.0) == pytest.approx(12.1)
    assert cache.begin_update(12.1) == ["u"]
    cache.update(answer(topic("u", partition(), topic_id=ID_B)), 12.1, asked=["u"])
    assert set(cache.snapshot.topics) == {"t", "u"}


def test_a_request_made_while_one_is_under_way_is_not_lost(cache: MetadataCache) -> None:
    cache.begin_update(10.0)
    cache.track(["t"], 10.0)
    cache.update(answer(), 10.0, asked=[])
    assert cache.next_update(10.0) == 10.0


def test_failures_back_off_further_and_further(cache: MetadataCache) -> None:
    due = []
    now = 0.0
    for _ in range(5):
        cache.begin_update(now)
        cache.fail_update(now)
        due.append(cache.next_update(now) - now)
        now += 100
    assert due == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert cache.failures == 5
    learn(cache, now=now)
    assert cache.failures == 0


def test_a_partition_without_leader_is_asked_for_ever_less_often(cache: MetadataCache) -> None:
    waits = []
    now = 0.0
    for _ in range(3):
        learn(cache, topic("t", partition(0, leader=-1)), now=now)
        waits.append(cache.next_update(now) - now)
        now += 10
    assert waits == pytest.approx([0.1, 0.2, 0.4])


def test_topics_that_nobody_uses_are_forgotten_and_leave_the_snapshot(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), topic("u", partition(), topic_id=ID_B))
    learn(cache, topic("v", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    cache.touch(["t", "stranger"], 50.0)
    assert cache.expire_topics(60.0) == ["u", "v"]
    assert cache.topics == ["t"]
    assert set(cache.snapshot.topics) == {"t"}
    assert cache.snapshot.names == {ID_A: "t"}
    assert cache.snapshot.errors == {}
    assert MetadataCache(max_age=1, backoff=Backoff(1, 1)).expire_topics(inf) == []


def test_what_is_in_use_is_not_forgotten() -> None:
    in_use = {"t"}
    cache = MetadataCache(max_age=300, max_idle=60, backoff=Backoff(1, 1), in_use=lambda: in_use)
    learn(cache, topic("t", partition()), topic("u", partition(), topic_id=ID_B))
    assert cache.expire_topics(60.0) == ["u"]
    in_use.clear()
    assert cache.expire_topics(119.0) == [], "from the last use on"
    assert cache.expire_topics(120.0) == ["t"]


def test_tracking_only_some_drops_the_others(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), topic("u", partition(), topic_id=ID_B))
    assert cache.track_only(["u", "v"], 1.0)
    assert cache.topics == ["u", "v"]
    assert set(cache.snapshot.topics) == {"u"}


def test_what_is_looked_at_is_of_interest_for_that_long(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()))
    cache.look_at(["t", "u"])
    cache.look_at(["u"])
    assert cache.topics == ["t", "u"]
    cache.begin_update(1.0)
    cache.update(answer(topic("t", partition()), topic("u", partition(), topic_id=ID_B)), 1.0, asked=["t", "u"])
    cache.look_away(["t", "u"])
    assert set(cache.snapshot.topics) == {"t", "u"}, "somebody still looks at u"
    cache.look_away(["u"])
    assert set(cache.snapshot.topics) == {"t"}, "and t is tracked"
    assert cache.topics == ["t"]


def test_an_answer_that_comes_after_the_interest_has_gone_is_left_out(cache: MetadataCache) -> None:
    cache.look_at(["t"])
    cache.begin_update(0.0)
    cache.look_away(["t"])
    cache.update(answer(topic("t", partition())), 0.0, asked=["t"])
    assert cache.snapshot.topics == {}
    cache.look_at(["t"])
    cache.begin_update(0.0)
    cache.look_away(["t"])
    cache.update(answer(topic("t", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), 0.0, asked=["t"])
    assert cache.snapshot.errors == {}
    assert cache.next_update(0.0) == 300.0, "nobody wants to know"


# --------------------------------------------------------------------------- what is created


def test_a_topic_is_created_until_it_was_found_and_not_again_when_it_was_deleted(cache: MetadataCache) -> None:
    cache.track(["t"], 0.0)
    assert cache.to_create() == {"t"}
    learn(cache, topic("t", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert cache.to_create() == {"t"}, "not there yet"
    learn(cache, topic("t", partition()))
    assert cache.to_create() == set()
    learn(cache, topic("t", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert cache.to_create() == set(), "whoever deleted it meant it"
    cache.track(["t"], 1.0)
    assert cache.to_create() == set()
    cache.track_only([], 2.0)
    cache.track(["t"], 3.0)
    assert cache.to_create() == {"t"}, "somebody begins anew"


def test_a_topic_in_use_is_created_again() -> None:
    in_use: set[str] = set()
    cache = MetadataCache(max_age=300, backoff=Backoff(1, 1), in_use=lambda: in_use)
    cache.track(["t"], 0.0, create=False)
    assert cache.to_create() == set()
    learn(cache, topic("t", partition()))
    in_use.update(["t", "stranger"])
    assert cache.to_create() == set(), "it is there"
    learn(cache, topic("t", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert cache.to_create() == {"t"}, "records wait for it"


def test_looking_at_a_topic_does_not_create_it(cache: MetadataCache) -> None:
    cache.look_at(["t"])
    assert cache.to_create() == set()


def test_bootstrapping_again_forgets_the_brokers_but_not_the_topics(cache: MetadataCache) -> None:
    learn(cache, topic("t", partition()), now=1.0)
    cache.rebootstrap()
    assert cache.snapshot.nodes == {}
    assert "t" in cache.snapshot.topics
    assert cache.next_update(1.0) == 1.0
