"""`consume --to-end` of topics that are deleted, or deleted and created again, while it reads."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import pytest

from kclient.cli import jsonlines, to_end
from kclient.cli.app import run
from kclient.inprocess import reset
from kclient.records import ConsumerRecord
from kclient.sync import Admin, Producer

# each fetch brings one batch, so that most of a topic is still to come when the first record is written
SMALL = ("-c", "max.partition.fetch.bytes=1", "-c", "fetch.max.bytes=1", "-c", "metadata.max.age.ms=500")
COUNT = 40


@pytest.fixture
def address() -> Iterator[str]:
    name = f"to-end-{uuid.uuid4().hex}"
    yield f"memory:{name}"
    reset(name)


def fill(address: str, topic: str, value: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap_servers=address, linger_ms=0) as producer:
        for number in range(count):
            producer.send(topic, f"{value} {number}".encode(), partition=partition)
            producer.flush()


def create(address: str, topic: str) -> None:
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, partitions=2)


def delete(address: str, topic: str) -> None:
    with Admin(bootstrap_servers=address) as admin:
        admin.delete_topic(topic)


def create_again(address: str, topic: str) -> None:
    delete(address, topic)
    create(address, topic)
    fill(address, topic, "new", 2 * COUNT)


def expire(address: str, topic: str) -> None:
    """All but the last record."""
    with Admin(bootstrap_servers=address) as admin:
        admin.delete_records({(topic, 0): COUNT - 1})


def when_one_is_written(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    written, dump = [], jsonlines.dump

    def then(record: ConsumerRecord) -> str:
        written.append(record)
        if len(written) == 1:
            what()
        return dump(record)

    monkeypatch.setattr(jsonlines, "dump", then)


@pytest.mark.parametrize("begin", [["--from-beginning"], ["--offset", "1"]], ids=" ".join)
@pytest.mark.parametrize(
    ("change", "said"),
    [(delete, "topic 't' was deleted; not read"), (create_again, "topic 't' was deleted and created again; not read")],
)
def test_a_topic_that_goes_before_its_end_was_read(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    begin: list[str],
    change: Callable[[str, str], None],
    said: str,
) -> None:
    for topic in ("t", "other"):
        create(address, topic)
    fill(address, "t", "old", COUNT)
    fill(address, "other", "other", 1, partition=1)
    when_one_is_written(monkeypatch, lambda: change(address, "t"))
    assert run(["consume", "t", "other", "-b", address, *begin, "--to-end", *SMALL]) == 1
    out, err = capfd.readouterr()
    values = [json.loads(line)["value"] for line in out.splitlines()]
    assert {value.split()[0] for value in values} <= {"old", "other"}
    assert len(values) < COUNT
    last = err.splitlines()[-1]
    assert said in last
    assert "to the end: t-0 (to before " in last
    assert f" of {COUNT})" in last
    assert "other" not in last


def test_a_topic_that_goes_when_all_was_read_is_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(address, "t")
    fill(address, "t", "old", 1)
    when_one_is_written(monkeypatch, lambda: delete(address, "t"))
    assert run(["consume", "t", "-b", address, "-p", "0", "--from-beginning", "--to-end"]) == 0


def test_a_topic_that_was_read_may_go_while_others_are_read(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for topic in ("t", "z"):
        create(address, topic)
    fill(address, "z", "short", 1)
    fill(address, "t", "long", COUNT)
    written, dump = set[str](), jsonlines.dump

    def then(record: ConsumerRecord) -> str:
        if record.topic == "z":
            delete(address, "z")
        written.add(record.topic)
        return dump(record)

    monkeypatch.setattr(jsonlines, "dump", then)
    monkeypatch.setattr(to_end, "_LOOK_S", 0.0)
    assert run(["consume", "t", "z", "-b", address, "--from-beginning", "--to-end", *SMALL]) == 0
    assert written == {"t", "z"}
    assert len(capfd.readouterr().out.splitlines()) == COUNT + 1


@pytest.mark.parametrize(
    "begin",
    [["--from-beginning"], ["-o", "earliest"], ["-o", "0"], ["-o", "-40"], ["-c", "auto.offset.reset=earliest"]],
    ids=" ".join,
)
def test_records_that_expire_are_passed_over(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], begin: list[str]
) -> None:
    create(address, "t")
    fill(address, "t", "old", COUNT)
    when_one_is_written(monkeypatch, lambda: expire(address, "t"))
    assert run(["consume", "t", "-b", address, *begin, "--to-end", *SMALL]) == 0
    out, err = capfd.readouterr()
    values = [json.loads(line)["value"] for line in out.splitlines()]
    assert values[0] == "old 0"
    assert values[-1] == f"old {COUNT - 1}"
    assert len(values) < COUNT
    assert "does not exist (any more)" in err


def test_a_place_to_go_on_that_is_given_counts(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    create(address, "t")
    fill(address, "t", "old", COUNT)
    when_one_is_written(monkeypatch, lambda: expire(address, "t"))
    latest = ["-o", "0", "-c", "auto_offset_reset=latest"]
    assert run(["consume", "t", "-b", address, *latest, "--to-end", *SMALL]) == 0
    assert f"old {COUNT - 1}" not in capfd.readouterr().out


@pytest.mark.slow
def test_several_topics_that_go_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for topic in ("t", "u", "other"):
        create(address, topic)
        fill(address, topic, "old", COUNT)

    def both() -> None:
        delete(address, "t")
        delete(address, "u")

    when_one_is_written(monkeypatch, both)
    assert run(["consume", "other", "u", "t", "-b", address, "--from-beginning", "--to-end", *SMALL]) == 1
    assert "topic 't' was deleted; not read" in capfd.readouterr().err
