"""The assignor of tasks of the gateway's coordinator against that of Kafka's (KIP-1071), on random groups."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from kclient.gateway.groups.assignors.sticky_tasks import assign_tasks
from kclient.gateway.groups.assignors.tasks import TaskMember, Tasks, TaskSets, TaskView

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "TaskAssignorOracle.java"
CASES = 1_500
Task = tuple[str, int]


def grouped(tasks: list[Task]) -> Tasks:
    names = sorted({name for name, _ in tasks})
    return {name: frozenset(number for other, number in tasks if other == name) for name in names}


def random_case(rng: random.Random) -> TaskView:
    """A group as it is after some changes: members have come and gone, and what they were to have is uneven."""
    parts = {str(number): (rng.randint(1, 12), rng.random() < 0.6) for number in range(rng.randint(1, 4))}
    everything = [(name, number) for name, (count, _) in parts.items() for number in range(count)]
    processes = [f"{rng.getrandbits(64):016x}" for _ in range(rng.randint(1, 5))]
    ids = [f"{rng.getrandbits(128):032x}" for _ in range(rng.choice([1, 2, 3, 5, 8, 14, 30]))]
    standbys = rng.randint(0, 2)
    active: dict[str, list[Task]] = {member: [] for member in ids}
    standby: dict[str, list[Task]] = {member: [] for member in ids}
    for task in everything:
        if rng.random() < 0.7:
            active[rng.choice(ids)].append(task)
        for member in rng.sample(ids, min(len(ids), rng.randint(0, 2))):
            if parts[task[0]][1] and task not in active[member]:
                standby[member].append(task)
    members = {
        member: TaskMember(rng.choice(processes), TaskSets(grouped(active[member]), grouped(standby[member])))
        for member in ids
    }
    if rng.random() < 0.3:  # a new one
        members = {each: TaskMember(member.process_id, TaskSets()) for each, member in members.items()}
    return TaskView(members, parts, standbys)


def text_of(tasks: Tasks) -> str:
    return ",".join(f"{name}:{number}" for name in sorted(tasks) for number in sorted(tasks[name]))


def encode(view: TaskView) -> str:
    parts = ",".join(f"{name}:{count}:{int(stateful)}" for name, (count, stateful) in view.subtopologies.items())
    members = [
        f"{member_id};{member.process_id};{text_of(member.target.active)};{text_of(member.target.standby)}"
        for member_id, member in view.members.items()
    ]
    return "|".join([str(view.standbys), parts, *members])


def test_decides_as_kafka(kafka_jars_4: Path) -> None:
    rng = random.Random("tasks")
    cases = [random_case(rng) for _ in range(CASES)]
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
        ours = assign_tasks(case)
        told = "|".join(
            f"{member}={text_of(ours[member].active)};{text_of(ours[member].standby)}" for member in sorted(ours)
        )
        assert told == answer, encode(case)
