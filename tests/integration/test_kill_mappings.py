"""kill -9 of a gateway on each mapping, amid produce, commits, growth, deletion and creation: nothing is half-done."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kclient.errors import KafkaError
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.numbered_load import NumberedGroup, NumberedLoad, read_numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AT_FIRST = 2
"""Partitions of the topic that is written to all the time; it grows in each life of the gateway."""
LIVES = 2
AGAIN = "again"
"""A topic that is deleted and made anew in each life, with other records and more of them."""


class Killed:
    """A gateway that is killed while something is asked of it, with its clients.

    Args:
        gateway: Which has been started.
        seed: Of the moments.
    """

    def __init__(self, gateway: GatewayProcess, seed: int) -> None:
        self.gateway = gateway
        self.dice = random.Random(seed)
        self.partitions = AT_FIRST

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        with Admin(bootstrap_servers=self.gateway.bootstrap) as admin:
            yield admin

    def amid(self, ask: Callable[[Admin], object]) -> None:
        """Kill the gateway while this is asked of it, and start it again; what comes of it is looked at afterwards."""
        begun = threading.Event()

        def asking() -> None:
            with self.admin() as admin:
                admin.list_topics()
                begun.set()
                with suppress(KafkaError):  # it may have been done, and be refused when it is asked for again
                    ask(admin)

        thread = threading.Thread(target=asking, name="asking")
        thread.start()
        assert begun.wait(30)
        thread.join(self.dice.choice([0.0, 0.002, 0.005, 0.01, 0.03]))
        self.gateway.stop(kill=True)
        self.gateway.start()
        thread.join(60)
        assert not thread.is_alive()

    def grow(self) -> None:
        wanted = self.partitions + 1
        self.amid(lambda admin: admin.create_partitions({"t": wanted}))
        with self.admin() as admin:
            found = len(admin.describe_topics(["t"])["t"].partitions)
            assert found in (self.partitions, wanted)
            if found < wanted:
                admin.create_partitions({"t": wanted})
            assert len(admin.describe_topics(["t"])["t"].partitions) == wanted
        self.partitions = wanted

    def delete(self) -> None:
        self.amid(lambda admin: admin.delete_topics([AGAIN]))
        with self.admin() as admin:
            if AGAIN in {topic.name for topic in admin.list_topics()}:
                admin.delete_topics([AGAIN])
            assert AGAIN not in {topic.name for topic in admin.list_topics()}

    def create(self) -> None:
        self.amid(lambda admin: admin.create_topic(AGAIN, AT_FIRST))
        with self.admin() as admin:
            if AGAIN not in {topic.name for topic in admin.list_topics()}:
                admin.create_topic(AGAIN, AT_FIRST)
            assert len(admin.describe_topics([AGAIN])[AGAIN].partitions) == AT_FIRST

    def committed(self, group: str, topic: str) -> dict[int, int]:
        with self.admin() as admin:
            found = admin.list_group_offsets(group)
        return {tp.partition: at.offset for tp, at in found.items() if tp.topic == topic}


def fill_again(killed: Killed, life: int) -> None:
    """Records that tell the life they are of, read and committed by a group."""
    bootstrap = killed.gateway.bootstrap
    with Producer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        for number in range(20 * (life + 1)):
            producer.send(AGAIN, b"%d" % (1000 * life + number), partition=number % AT_FIRST)
    with Consumer(bootstrap_servers=bootstrap, group_id="again", enable_auto_commit=False) as consumer:
        consumer.assign([(AGAIN, number) for number in range(AT_FIRST)])
        consumer.commit({TopicPartition(AGAIN, number): life + 1 for number in range(AT_FIRST)})


def check_again(killed: Killed, life: int) -> None:
    """It has what was produced in its life, and nothing of its namesakes'."""
    expected = {(number % AT_FIRST, number // AT_FIRST): 1000 * life + number for number in range(20 * (life + 1))}
    assert read_numbers(killed.gateway.bootstrap, AGAIN, AT_FIRST) == expected
    assert killed.committed("again", AGAIN) == dict.fromkeys(range(AT_FIRST), life + 1)


def check_commits(killed: Killed, group: NumberedGroup, before: dict[int, int]) -> None:
    """What was acknowledged before the gateway was killed is there, or what was to be committed since."""
    found = killed.committed("g", "t")
    for partition, offset in before.items():
        assert offset <= found[partition] <= group.begun[partition]


@pytest.mark.parametrize("mapping", ["domain", "multilevel", "virtual", "broker"])
def test_a_gateway_that_is_killed_amid_everything(tmp_path: Path, mapping: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    options = ["--mapping", mapping] + (["--brokers", str(AT_FIRST + LIVES)] if mapping == "broker" else [])
    gateway = GatewayProcess(tmp_path / "data", options=options)
    gateway.start()
    try:
        killed = Killed(gateway, seed)
        with killed.admin() as admin:
            admin.create_topic("t", AT_FIRST)
            admin.create_topic(AGAIN, AT_FIRST)
        with (
            NumberedGroup(gateway.bootstrap, "g", "t") as group,
            NumberedLoad(gateway.bootstrap, "t", partitions=AT_FIRST, size=200) as load,
        ):
            fill_again(killed, 0)
            for life in range(1, LIVES):
                live(killed, load, group, life)
            load.stop()
            ends = load.ends()
            group.wait_until(lambda committed: committed == ends)
        assert group.skipped == []
        assert group.read == {place: number for number, place in load.acknowledged.items()}
        for kill in (True, False):
            load.check(read_numbers(gateway.bootstrap, "t", killed.partitions))
            check_again(killed, LIVES - 1)
            assert killed.committed("g", "t") == ends
            gateway.stop(kill=kill)
            gateway.start()
    finally:
        gateway.stop()


def live(killed: Killed, load: NumberedLoad, group: NumberedGroup, life: int) -> None:
    """Three kills: amid growth, amid a deletion, amid the creation of the namesake; with everything going on."""
    group.wait_until(lambda committed: len(committed) == killed.partitions)
    load.wait_for(killed.dice.randrange(1, 500))
    before = dict(group.committed)
    killed.grow()
    load.partitions = killed.partitions
    check_commits(killed, group, before)
    check_again(killed, life - 1)
    before = dict(group.committed)
    killed.delete()
    check_commits(killed, group, before)
    assert killed.committed("again", AGAIN) == {}
    killed.create()
    assert read_numbers(killed.gateway.bootstrap, AGAIN, AT_FIRST) == {}
    fill_again(killed, life)
    load.wait_for_partition(killed.partitions - 1)  # not before this does the load know that the topic grew
