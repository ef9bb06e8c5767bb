"""`kclient cluster`, on two gateways of one store."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
import yaml

from kclient.admin import ConfigEntry, ConfigResource, ConfigSource
from kclient.cli import cluster, gateways, output, sheets
from kclient.cli.app import run
from kclient.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from kclient.inprocess import reset
from kclient.protocol.messages import MetadataRequest, MetadataRequestTopic
from kclient.sync import Admin, Gateway
from tests.wire_session import until, wire_session

pytestmark = pytest.mark.timeout(60)

COUNT = 6


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    address = f"memory:{uuid.uuid4().hex}"
    with (
        Gateway(address, listen="127.0.0.1:0", config={"node.id": 1}) as one,
        Gateway(address, listen="127.0.0.1:0", config={"node.id": 2}),
        Admin(bootstrap_servers=one.bootstrap) as found,
    ):
        monkeypatch.setenv("KCLIENT_BOOTSTRAP_SERVERS", one.bootstrap)
        until_there_are(found, 2)
        create(found, "t", COUNT)
        while set(leaders(found)) != {1, 2}:  # one in thirty ids gives all of them to one gateway
            found.delete_topic("t")
            create(found, "t", COUNT)
        yield found
    reset(address)


def until_there_are(admin: Admin, count: int) -> None:
    end = time.monotonic() + 20
    while len(admin.describe_cluster().nodes) < count:
        assert time.monotonic() < end


def create(admin: Admin, topic: str, count: int) -> None:
    """Create a topic and wait until every gateway knows it: one that was not asked is told a moment later."""
    admin.create_topic(topic, count)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    async def known() -> None:
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(wire_session(f"{node.host}:{node.port}"))
                for node in admin.describe_cluster().nodes
            ]

            async def told() -> set[tuple[int, bytes]]:
                found = [(await session(request, 12)).topics[0] for session in sessions]
                return {(topic.error_code, topic.topic_id) for topic in found}

            await until(told, lambda told: len(told) == 1 and not next(iter(told))[0])

    anyio.run(known)


def leaders(admin: Admin) -> list[int]:
    found = admin.describe_topics(["t"])["t"].partitions
    return [info.leader.id for info in sorted(found, key=lambda info: info.partition) if info.leader is not None]


def until_led_by(admin: Admin, *nodes: int) -> None:
    end = time.monotonic() + 20
    while set(leaders(admin)) != set(nodes):
        assert time.monotonic() < end, leaders(admin)


def objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    capsys.readouterr()
    assert run(["cluster", *arguments, "--output", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_yaml_says_the_same_as_json(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    (expected,) = objects(capsys, "describe", "t")
    assert run(["cluster", "describe", "t", "--output", "yaml"]) == 0
    (found,) = yaml.safe_load_all(capsys.readouterr().out)
    for one in (expected, found):
        for partition in one["partitions"]:
            partition.pop("lease age")
    assert found == expected


@pytest.mark.slow
def test_it_shows_who_leads_what(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = objects(capsys, "status")
    assert [broker["broker"] for broker in found["brokers"]] == [1, 2]
    assert sum(broker["leads"] for broker in found["brokers"]) == COUNT
    assert sum(broker["coordinates"] for broker in found["brokers"]) == 100
    assert [broker["controller"] for broker in found["brokers"]] == [True, False]
    (described,) = objects(capsys, "describe", "t")
    assert [row["leader"] for row in described["partitions"]] == leaders(admin)
    assert all(row["replicas"] == [row["leader"]] for row in described["partitions"])
    assert {row["why"] for row in described["partitions"] if row["leader"] == 2} == {"joined 2"}
    assert all(0 <= row["lease age"] < 30 and row["behind"] == 0 for row in described["partitions"])
    assert run(["cluster", "status"]) == 0
    assert capsys.readouterr().out.startswith(
        "broker\taddress\track\tcontroller\tleads\thas\tcoming\tgoing\tcoordinates\tlease age\tbehind\n1\t"
    )
    assert run(["cluster", "describe"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == COUNT + 1


def test_partitions_are_moved(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "move", "t", "--to", "2"]) == 0
    until_led_by(admin, 2)
    assert run(["cluster", "move", "t:0", "t:3", "--to", "1"]) == 0
    until_led_by(admin, 1, 2)
    assert leaders(admin) == [1, 2, 2, 1, 2, 2]
    end, reasons = time.monotonic() + 20, set[str]()
    while reasons != {"by hand"}:  # it may ask the other gateway, which hears of it a moment later
        assert time.monotonic() < end
        (described,) = objects(capsys, "describe", "t")
        reasons = {row["why"] for row in described["partitions"] if row["leader"] == 1}


def test_one_is_drained(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    before = leaders(admin)
    assert run(["cluster", "drain", "1", "--dry-run"]) == 0
    told = capsys.readouterr()
    topics = [line.split("\t")[0] for line in told.out.splitlines()[1:]]
    assert topics.count("t") == before.count(1)
    assert {"__consumer_offsets", "__transaction_state"} < set(topics), "groups and transactions go, too"
    assert "nothing was changed" in told.err
    assert leaders(admin) == before
    assert run(["cluster", "drain", "1"]) == 0
    until_led_by(admin, 2)
    (found,) = objects(capsys, "status")
    assert [broker["coordinates"] for broker in found["brokers"]] == [0, 100]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["move", "t", "--to", "one"], "number of a broker"),
        (["move", "t:x", "--to", "1"], "TOPIC:PARTITION"),
        (["drain", "7"], "there are 1, 2"),
        (["drain", "1", "7"], "there are 1, 2"),
        (["drain", "1", "2"], "there is none to move it to"),
        (["move", "t:0", "--to", "1,2"], "t-0 has 1 replica, and --to=1,2 names 2 replicas"),
        (["status", "--output", "xml"], "table, json or yaml"),
    ],
)
def test_what_cannot_be_is_refused(
    admin: Admin, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cluster", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_unknown_partitions_and_brokers_are_told(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "move", "t:99", "--to", "1"]) == 1
    assert "no partition 99" in capsys.readouterr().err
    assert run(["cluster", "move", "t:0", "--to", "9"]) == 1
    assert "broker 9" in capsys.readouterr().err


def test_it_is_shown_anew_until_it_is_ended(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = iter(range(2))

    def sleep(_seconds: float) -> None:
        if next(turns, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sheets.time, "sleep", sleep)
    assert run(["cluster", "status", "--watch", "--output", "json"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("gone", [["gone"], ["gone", "too"]])
def test_a_topic_that_is_deleted_meanwhile_is_left_out(
    admin: Admin, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, original = admin.list_topics(), admin.list_topics
    before = [*listed, *(replace(listed[0], name=name) for name in gone)]
    answers = [listed, before, listed]  # of these the second is what it describes
    monkeypatch.setattr(admin, "list_topics", lambda **_: answers.pop(0))
    assert sum(broker["leads"] for broker in cluster.status(admin).fields["brokers"]) == COUNT
    assert not answers
    monkeypatch.setattr(admin, "list_topics", original)
    for name in gone:
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.describe(admin, ["t", name])


def test_a_live_table_has_as_many_rows_as_there_is_place_for(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sleep(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sheets.time, "sleep", sleep)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    for lines, told in (("8", f"{COUNT} partitions, the first 2 are shown"), ("40", f"{COUNT} partitions  ")):
        monkeypatch.setenv("LINES", lines)
        assert run(["cluster", "describe", "--watch"]) == 130
        assert told in capsys.readouterr().out


def test_thousands_of_rows_are_printed_soon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    began = time.process_time()
    output.table(["topic", "partition"], [("t" * (index % 7), index) for index in range(20_000)], title="many")
    assert time.process_time() - began < 5  # rich takes half a minute
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "many"
    assert len(lines) == 20_001
    assert {line.index(line.split()[-1], 7) for line in lines} == {8}


def test_of_many_partitions_the_first_are_named_that_are_moved(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(output, "note", notes.append)
    create(admin, "many", 50)
    assert run(["cluster", "move", "many", "--to", "2"]) == 0
    assert notes[-1].startswith("moving to 2: many-0, many-1, ")
    assert notes[-1].endswith(", many-9 and 40 more")


def test_several_are_drained_at_once() -> None:
    memory = f"memory:{uuid.uuid4().hex}"
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(Gateway(memory, listen="127.0.0.1:0", config={"node.id": number}))
            for number in (1, 2, 3)
        ]
        bootstrap = gateways[0].bootstrap
        three = stack.enter_context(Admin(bootstrap_servers=bootstrap))
        until_there_are(three, 3)
        create(three, "t", COUNT)
        assert run(["cluster", "drain", "1", "3", "--bootstrap", bootstrap]) == 0
        until_led_by(three, 2)
    reset(memory)


def test_brokers_that_do_not_answer_are_asked_side_by_side() -> None:
    """One after the other each would cost the patience of a call."""
    together = threading.Barrier(3, timeout=10)

    class Asked:
        def describe_configs(self, resources: list[ConfigResource]) -> dict[ConfigResource, dict[str, ConfigEntry]]:
            together.wait()
            if resources[0].name != "2":
                raise KafkaTimeoutError("no answer")
            read_only = ConfigSource.STATIC_BROKER_CONFIG, True, False
            names = ("htp.lease.age.ms", "htp.checkpoints.behind")
            return {resources[0]: {name: ConfigEntry(name, "7000", *read_only) for name in names}}

    found = gateways.standings(cast("Admin", Asked()), [1, 2, 3])
    assert found == {2: gateways.ToldStanding(7.0, 7000, "")}


def test_features_are_shown_and_changed(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    name = "transaction.version"

    def shown() -> tuple[int, int]:
        (found,) = objects(capsys, "features")
        *of_groups, feature = found["features"]
        levels = {each["feature"]: each["level"] for each in of_groups}
        assert levels == {"group.version": 1, "share.version": 1, "streams.version": 1}
        assert (feature["feature"], feature["lowest"], feature["highest"]) == (name, 0, 2)
        return feature["level"], found["epoch"]

    before = shown()
    assert before[0] == 2
    assert run(["cluster", "features", f"{name}=1", "--downgrade", "--dry-run"]) == 0
    assert "dry run" in capsys.readouterr().err
    assert shown() == before
    assert run(["cluster", "features", f"{name}=1", "--downgrade"]) == 0
    assert admin.describe_features(broker_id=1).finalized_features[name] == (1, 1)
    assert run(["cluster", "features", f"{name}=0", "--unsafe-downgrade"]) == 0
    assert run(["cluster", "features", f"{name}=2"]) == 0
    end = time.monotonic() + 20
    while (after := shown())[0] != 2:
        assert time.monotonic() < end
    assert after[1] > before[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["transaction.version"], "NAME=LEVEL"),
        (["transaction.version=two"], "NAME=LEVEL"),
        (["transaction.version=0"], "give --downgrade"),
        (["transaction.version=99999"], "0 to 32767"),
        (["transaction.version=1", "transaction.version=2"], "given twice"),
        (["transaction.version=3"], "only support versions 0-2"),
        (["transaction.version=1"], "Can't downgrade"),
        (["no.such=1"], "do not support this feature"),
        (["--dry-run"], "give NAME=LEVEL"),
        (["--downgrade"], "give NAME=LEVEL"),
        (["transaction.version=2", "--output", "json"], "without NAME=LEVEL"),
    ],
)
def test_changes_of_features_that_are_refused(
    admin: Admin, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(["cluster", "features", *arguments]) != 0
    assert told in " ".join(capsys.readouterr().err.split())
    assert admin.describe_features().finalized_features["transaction.version"] == (2, 2)
