"""The assignors of the gateway's coordinator against those of Kafka's (KIP-848), on random groups."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from kclient.gateway.groups.assignors.model import GroupView, MemberView, Partitions
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
    answers = subprocess.run(
        ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)],
        input="\n".join(map(encode, cases)) + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout.splitlines()
    assert len(answers) == len(cases)
    for case, answer in zip(cases, answers, strict=True):
        ours = ASSIGNORS[name](case[1])
        told = "|".join(f"{member}={text_of(ours[member])}" for member in sorted(ours))
        assert told == answer, encode(case)
