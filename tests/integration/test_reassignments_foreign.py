"""Kafka's own tools move the partitions of gateways, and find them where they moved them to."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kclient.inprocess import reset
from kclient.sync import Admin, Gateway
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools

pytestmark = [pytest.mark.kafka, pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
OFFSETS = "__consumer_offsets"
COUNT = 12


@pytest.fixture
def store() -> Iterator[str]:
    address = f"memory:{uuid.uuid4().hex}"
    yield address
    reset(address)


def gateway(store: str, node_id: int) -> Gateway:
    return Gateway(store, listen="127.0.0.1:0", config={"node.id": node_id})


def leaders(admin: Admin, topic: str) -> dict[int, int]:
    found = admin.describe_topics([topic])[topic].partitions
    return {info.partition: info.leader.id for info in found if info.leader is not None}


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_partitions_stay_where_the_tool_has_moved_them(store: str, tmp_path: Path) -> None:
    """Also those that it moves to where they are, or would be by themselves, and whoever joins and leaves."""
    tools = JavaTools(KAFKA_4, tmp_path)
    wanted = tmp_path / "wanted.json"
    with ExitStack() as stack:
        one = stack.enter_context(gateway(store, 1))
        other = stack.enter_context(gateway(store, 2))
        admin = stack.enter_context(Admin(bootstrap_servers=f"{one.bootstrap},{other.bootstrap}"))
        until(lambda: set(leaders(admin, OFFSETS).values()) == {1, 2})
        admin.create_topic("t", COUNT)

        def reassign(*what: str) -> str:
            return tools.run(
                REASSIGN, "--bootstrap-server", one.bootstrap, "--reassignment-json-file", str(wanted), *what
            )

        def verified(*options: str) -> bool:
            told = reassign("--verify", *options)
            return told.count("is completed") == 2 * COUNT

        places = {(topic, index): 1 + index % 2 for topic in ("t", OFFSETS) for index in range(COUNT)}
        rows = [{"topic": topic, "partition": index, "replicas": [to]} for (topic, index), to in places.items()]
        wanted.write_text(json.dumps({"version": 1, "partitions": rows}))
        assert "Successfully started partition reassignment" in reassign("--execute")
        until(verified)

        def elected() -> str:
            return tools.run(
                ELECT, "--bootstrap-server", one.bootstrap, "--election-type", "preferred", "--all-topic-partitions"
            )

        elected()  # there is nothing to do
        third = stack.enter_context(gateway(store, 3))
        until(lambda: 3 in leaders(admin, OFFSETS).values())  # of what nobody has moved
        assert verified(), "who joins takes nothing of it"
        other.close()
        with Admin(bootstrap_servers=f"{one.bootstrap},{third.bootstrap}") as others:
            until(lambda: 2 not in leaders(others, "t").values())
        assert not verified("--preserve-throttles")  # else it wants to ask the broker that is away
        with pytest.raises(RuntimeError, match=r"PREFERRED_LEADER_NOT_AVAILABLE|PreferredLeaderNotAvailable"):
            elected()
        again = stack.enter_context(gateway(store, 2))
        with Admin(bootstrap_servers=again.bootstrap) as back:
            until(lambda: leaders(back, "t") == {index: places["t", index] for index in range(COUNT)})
        until(verified)
