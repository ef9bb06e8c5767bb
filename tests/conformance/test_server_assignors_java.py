"""The assignors of the gateway's coordinator against those of Kafka's (KIP-848, KIP-932), on random groups."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from kclient.gateway.groups.assignors.model import GroupView, MemberView, PartitionAssignor, Partitions
from kclient.gateway.groups.assignors.simple import assign_simply
from kclient.gateway.groups.assignors.table import ASSIGNORS

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "ServerAssignorOracle.java"
CASES = 600
Case = tuple[str, GroupView]


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def random_case(name: str, rng: random.Random, *, same_topics: bool) -> Case:
    """A group as it is after some changes: what members were to have is uneven, and has gone in part."""
    # Java goes through hash maps; with these ids, and so few partitions, in their order
    topics = [topic_id(number) for number in range(1, rng.randint(2, 7))]
    counts = {topic: rng.randint(1, 12) for topic in topics}
    everything = [(topic, number) for topic, count in counts.items() for number in range(count)]
    free = [partition for partition in everything if rng.random() < 0.8]
    rng.shuffle(free)
    common = tuple(sorted(rng.sample(topics, rng.randint(1, len(topics)))))
    members: dict[str, MemberView] = {}
    ids = rng.sample([f"m{number}" for number in range(20)], rng.randint(1, 9))
    for member in ids:
        wanted = common if same_topics else tuple(sorted(rng.sample(topics, rng.randint(1, len(topics)))))
        take = rng.randint(0, 9)
        target: dict[bytes, frozenset[int]] = {}
        for topic, number in sorted(free[:take]):
            target[topic] = target.get(topic, frozenset()) | {number}
        free = free[take:]
        instance = f"i{rng.randint(0, 9999)}" if rng.random() < 0.3 else None
        members[member] = MemberView(wanted, instance, target)
    read = {topic for member in members.values() for topic in member.topics}
    return name, GroupView(members, {topic: count for topic, count in counts.items() if topic in read})


def number_of(topic: bytes) -> int:
    return int.from_bytes(topic, "big")


def text_of(partitions: Partitions) -> str:
    return ",".join(
        f"{number_of(topic)}:{number}" for topic in sorted(partitions) for number in sorted(partitions[topic])
    )


def encode(case: Case) -> str:
    name, group = case
    parts = [name, ",".join(f"{number_of(topic)}:{count}" for topic, count in group.counts.items())]
    for member_id, member in group.members.items():
        topics = ",".join(str(number_of(topic)) for topic in member.topics)
        parts.append(f"{member_id};{member.instance_id or ''};{topics};{text_of(member.target)}")
    return "|".join(parts)


@pytest.mark.parametrize("name", ["uniform", "range"])
@pytest.mark.parametrize("same_topics", [True, False], ids=["same topics", "different topics"])
def test_decides_as_kafka(name: str, same_topics: bool, kafka_jars_4: Path) -> None:
    rng = random.Random(f"{name} {same_topics}")
    cases = [random_case(name, rng, same_topics=same_topics) for _ in range(CASES)]
    compare(cases, ASSIGNORS[name], kafka_jars_4)


@pytest.mark.parametrize("same_topics", [True, False], ids=["same topics", "different topics"])
def test_shares_as_kafka(same_topics: bool, kafka_jars_4: Path) -> None:
    rng = random.Random(f"simple {same_topics}")
    cases = [random_shares(rng, same_topics=same_topics) for _ in range(2 * CASES)]
    assert any(len(case[1].members) > sum(case[1].counts.values()) for case in cases)
    compare(cases, assign_simply, kafka_jars_4)


def random_shares(rng: random.Random, *, same_topics: bool) -> Case:
    """A share group as it is after some changes: what members were to have is uneven, several had the same.

    Java goes through a set of 16 partitions in the order of their hashes, which are 31 times that of the topic's id and
    the number: of these ids the partitions of all topics have neighbouring ones.
    """
    left, counts = 16, dict[bytes, int]()
    for _ in range(rng.randint(2, 4)):
        count = rng.randint(1, max(1, left // 2))
        first = 16 - left
        counts[topic_id(first * pow(31, -1, 1 << 32) % (1 << 32))] = count
        left -= count
    topics = list(counts)
    everything = [(topic, number) for topic, count in counts.items() for number in range(count)]
    common = tuple(topics[: rng.randint(1, len(topics))])
    read = dict.fromkeys(rng.sample([f"m{number}" for number in range(20)], rng.randint(1, 12)), common)
    if not same_topics and len(read) > 1:
        read = {member: tuple(sorted(rng.sample(topics, rng.randint(1, len(topics))))) for member in read}
        read[next(iter(read))] = tuple(topics)
        read[list(read)[1]] = tuple(topics[1:])
    there = set().union(*read.values())
    members: dict[str, MemberView] = {}
    for member, wanted in read.items():
        target: dict[bytes, frozenset[int]] = {}
        for topic, number in rng.sample(everything, rng.randint(0, len(everything))):
            if same_topics or topic in there:  # Kafka's keeps what nobody reads, and nobody is told of it
                target[topic] = target.get(topic, frozenset()) | {number}
        members[member] = MemberView(wanted, None, target)
    return "simple", GroupView(members, {topic: count for topic, count in counts.items() if topic in there})


def compare(cases: list[Case], assign: PartitionAssignor, jars: Path) -> None:
    """Whether both decide the same."""
    answers = subprocess.run(
        ["java", "-cp", f"{jars}/*", str(ORACLE)],
        input="\n".join(map(encode, cases)) + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout.splitlines()
    assert len(answers) == len(cases)
    for case, answer in zip(cases, answers, strict=True):
        ours = assign(case[1])
        told = "|".join(f"{member}={text_of(ours[member])}" for member in sorted(ours))
        assert told == answer, encode(case)
