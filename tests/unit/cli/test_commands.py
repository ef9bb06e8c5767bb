"""The commands, run in this process on a gateway in memory."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from kclient.cli import jsonlines, produce
from kclient.cli.app import run
from kclient.cli.errors import Terminated, sentence_of
from kclient.cli.sheets import document
from kclient.errors import BrokerConnectionError, KafkaError, KafkaTimeoutError, NoBrokersAvailableError
from kclient.inprocess import reset
from kclient.sync import Admin, Consumer, Producer
from tests.sweeps import slow


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"cli-{uuid.uuid4().hex}"
    monkeypatch.setenv("KCLIENT_BOOTSTRAP_SERVERS", f"memory:{name}")
    yield f"memory:{name}"
    reset(name)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands as a shell would, with what they print caught."""

    def __init__(self, address: str, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.address = address
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str = "") -> Outcome:
        self._capture.readouterr()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run(list(arguments))
        out, err = self._capture.readouterr()
        return Outcome(code, out.decode(), err.decode())

    def ok(self, *arguments: str, stdin: str = "") -> Outcome:
        outcome = self(*arguments, stdin=stdin)
        assert outcome.code == 0, outcome.err
        return outcome


@pytest.fixture
def shell(memory: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(memory, capsysbinary, monkeypatch)


LINES = """\
{"key": "a", "value": "1", "partition": 0, "timestamp": 1000}
{"key": null, "value": {"base64": "/w=="}, "partition": 1, "headers": [["h", "v"], ["h", null]]}

{"key": "c", "value": null, "partition": 2}
"""


# ---- produce and consume ------------------------------------------------------------------------------------


def test_records_go_through_two_topics_unchanged(shell: Shell) -> None:
    for topic in ("one", "two"):
        shell.ok("topics", "create", topic, "--partitions", "3")
    shell.ok("produce", "one", stdin=LINES)
    first = shell.ok("consume", "one", "--from-beginning", "--to-end")
    assert len(first.records) == 3
    shell.ok("produce", "two", stdin=first.out)
    second = shell.ok("consume", "two", "--from-beginning", "--to-end")
    assert [{**each, "topic": "one"} for each in second.records] == first.records
    assert first.records[0] == {
        "topic": "one", "partition": 0, "offset": 0, "timestamp": 1000, "key": "a", "value": "1"
    }  # fmt: skip


@pytest.mark.slow
def test_where_to_begin_and_to_stop(shell: Shell) -> None:
    shell.ok("produce", "t", stdin="".join(f'{{"value": "{number}"}}\n' for number in range(10)))

    def values(*options: str) -> list[int]:
        return [int(record["value"]) for record in shell.ok("consume", "t", *options).records]

    assert values("--from-beginning", "--limit", "3") == [0, 1, 2]
    assert values("--offset", "7", "--to-end") == [7, 8, 9]
    assert values("--offset", "-2", "--to-end") == [8, 9]
    assert values("--offset", "-100", "--to-end", "-p", "0") == list(range(10))
    assert values("--offset", "latest", "--to-end") == []
    assert values("--to-end") == []
    assert values("--limit", "0") == []
    for name in ("auto.offset.reset", "auto_offset_reset"):
        assert values("-c", f"{name}=earliest", "--to-end") == list(range(10))
        assert values("-c", f"{name}=latest", "--to-end") == []
        assert values("-c", f"{name}=by_duration:PT1H", "--limit", "2") == [0, 1]
        assert values("-c", f"{name}=earliest", "--offset", "7", "--to-end") == [7, 8, 9]
        assert values("-c", f"{name}=earliest", "--offset", "latest", "--to-end") == []
        assert values("-c", f"{name}=earliest", "--group", f"g of {name}", "--limit", "2") == [0, 1]
    refused = shell("consume", "t", "-c", "auto.offset.reset=none", "--to-end")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.count("\n") == 1


def test_produce_takes_no_transactional_id(shell: Shell) -> None:
    for name in ("transactional.id", "transactional_id"):
        refused = shell("produce", "t", "-c", f"{name}=x", stdin="{}\n")
        assert refused.code != 0
        assert "--config transactional.id has no place here" in refused.err


def test_a_group_goes_on_where_it_stopped(shell: Shell) -> None:
    shell.ok("produce", "t", stdin="".join(f'{{"value": "{number}"}}\n' for number in range(10)))
    first = shell.ok("consume", "t", "--group", "g", "--from-beginning", "--limit", "4")
    second = shell.ok("consume", "t", "--group", "g", "--from-beginning", "--limit", "6")
    assert [int(record["value"]) for record in first.records + second.records] == list(range(10))


def test_a_group_that_does_not_begin_at_the_beginning_says_so(shell: Shell) -> None:
    shell.ok("topics", "create", "t", "-p", "2")
    shell.ok("produce", "t", stdin="".join(f'{{"value": "{number}", "partition": 0}}\n' for number in range(3)))
    assert shell.ok("consume", "t", "--group", "g", "--from-beginning", "--limit", "1").err == ""
    again = shell.ok("consume", "t", "--group", "g", "--from-beginning", "--limit", "1")
    assert [record["value"] for record in again.records] == ["1"]
    assert "the group g goes on where it stopped in 1 of 2 partitions, not at the beginning" in again.err
    assert shell.ok("consume", "t", "--group", "g", "--limit", "1").err == ""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["bogus"], ["consume", "t", "-o", "x"], ["topics"]], ids=" ".join)
def test_the_exit_code_tells_also_where_nothing_can_be_written(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "kclient", *words], stdout=full, stderr=full, check=False)
    assert done.returncode == 2


def test_a_wrong_line_says_which_and_what_was_sent(shell: Shell) -> None:
    outcome = shell("produce", "t", stdin='{"value": "fine"}\nnot json\n{"value": "later"}\n')
    assert outcome.code == 1
    assert "line 2 is not JSON" in outcome.err
    assert 'a line is {"key": "a", "value": "b"}' in outcome.err
    assert "the 1 records before it were sent" in outcome.err
    assert "nothing was sent" in shell("produce", "t", stdin='{"value": 5}\n').err
    assert [record["value"] for record in shell.ok("consume", "t", "--from-beginning", "--to-end").records] == ["fine"]


def test_a_line_that_the_client_refuses_is_named(shell: Shell) -> None:
    lines = '{"value": "a"}\n{"value": "b", "partition": 9}\n'
    outcome = shell("produce", "t", "--config", "max.block.ms=1000", stdin=lines)
    assert outcome.code == 1
    assert "line 2 is refused: The partition 9 of topic 't' did not appear within 1 s" in outcome.err
    assert "the 1 records before it were sent" in outcome.err
    large = json.dumps({"value": "x" * 2_000_000})
    assert "line 1 is refused: " in shell("produce", "t", stdin=f"{large}\n").err
    assert [record["value"] for record in shell.ok("consume", "t", "--from-beginning", "--to-end").records] == ["a"]


def test_what_was_read_before_ctrl_c_is_sent(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @property
        def buffer(self) -> Iterator[bytes]:
            yield b'{"value": "a"}\n'
            yield b'{"value": "b"}\n'
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert run(["produce", "t", "--config", "linger.ms=20000"]) == 130
    monkeypatch.undo()
    shown = shell.ok("consume", "t", "--from-beginning", "--to-end", "--bootstrap", shell.address)
    assert [record["value"] for record in shown.records] == ["a", "b"]


@pytest.mark.parametrize("appended", [True, False], ids=["after the record", "before it"])
def test_an_interruption_beside_a_send_is_counted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, appended: bool
) -> None:
    """A signal may come as soon as the producer has the record, or while it waits to take it."""

    class Interrupted(Producer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._left, self._fast, self.send = 3, self.send, self._slow  # type: ignore[method-assign]

        def _slow(self, *arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left or appended:
                self._fast(*arguments, **named)
            if not self._left:
                raise KeyboardInterrupt

    shell.ok("topics", "create", "t")
    monkeypatch.setattr(produce, "Producer", Interrupted)
    outcome = shell("produce", "t", stdin='{"value": "a"}\n' * 10)
    monkeypatch.undo()
    assert outcome.code == 130
    stored = len(shell.ok("consume", "t", "--from-beginning", "--to-end", "--bootstrap", shell.address).records)
    assert stored == (3 if appended else 2)
    assert outcome.err == f"kclient: interrupted: {stored} records were acknowledged, {3 - stored} were not\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["consume", "nothing", "--to-end"], 1, "there is no topic 'nothing'"),
        (["consume", "t", "--offset", "soon"], 2, "--offset is a number"),
        (["consume", "t", "--group", "g", "--to-end"], 2, "--group shares"),
        (["consume", "t", "--partition", "7"], 1, "has no partition 7"),
        (["consume", "t", "--config", "fetch.min.byte=1"], 2, "fetch.min.bytes"),
        (["consume", "t", "--config", "x"], 2, "--config takes NAME=VALUE"),
        (["consume", "t", "-o", "1", "--from-beginning"], 2, "both say where to begin"),
        (["consume", "t", "-o", "latest", "--from-beginning"], 2, "both say where to begin"),
        (["consume", "t", "--from-beginning", "-c", "auto.offset.reset=latest"], 2, "both say where to begin"),
        (["consume", "t", "-g", "g", "-o", ""], 2, "--group shares"),
        (["consume", "t", "-o", "9223372036854775808"], 2, "--offset is a number"),
        (["consume", "t", "-o", "1_0"], 2, "--offset is a number"),
        (["consume", "t", "-c", "group.id=g"], 2, "--group names the group"),
        (["consume", "t", "-c", "group_id=g"], 2, "--group names the group"),
        (["consume", "t", "--from-beginning", "-c", "auto_offset_reset=latest"], 2, "both say where to begin"),
        (["consume", "t", "-c", "bootstrap.servers=x:1"], 2, "--bootstrap says where the broker is"),
        (["consume", "t", "-c", "value.deserializer=json"], 2, "value.deserializer has no place here"),
        (["produce", "t", "-c", "key_serializer=string"], 2, "key.serializer has no place here"),
        (["consume", "t", "-c", "check.crcs=true", "-c", "check.crcs=false"], 2, "check.crcs is given twice"),
        (
            ["topics", "alter", "t", "-s", "retention.ms=1", "-s", "retention.ms=2"],
            2,
            "--set retention.ms is given twice",
        ),
        (["topics", "alter", "t", "-s", "retention.ms=1", "-u", "retention.ms"], 2, "to --set and to --unset"),
        (["groups", "list", "--state", "Bogus"], 2, "--state is one of PreparingRebalance, "),
        (["groups", "describe", "g", "h"], 2, "unexpected extra argument"),
        (["groups", "reset", "g", "--to-offset", "1", "-t", "t:7"], 1, "has no partition 7"),
        (["groups", "reset", "g", "--to-offset", "1", "-t", "nothing:0"], 1, "nothing"),
        (["groups", "reset", "g", "--to-offset", "1", "-t", "t:x"], 2, "--topic is TOPIC or TOPIC:PARTITION"),
        (["groups", "reset", "g", "--to-time", "9223372036854775808", "-t", "t"], 2, "--to-time is ISO 8601"),
        (["groups", "reset", "g", "--to-time", "-1", "-t", "t"], 2, "--to-time is ISO 8601"),
        (["groups", "reset", "g", "--to-time", "1969-12-31T23:59:59.999", "-t", "t"], 2, "is a time since 1970"),
        (["groups", "reset", "g", "--to-time", "1970-01-01T00:59+01:00", "-t", "t"], 2, "is a time since 1970"),
        (["consume", "t", "-g", ""], 2, "a group's name is empty"),
        (["consume", "t", "-g", "g", "-c", "enable.auto.commit=true"], 2, "what was written is committed"),
        (
            ["consume", "t", "-g", "g", "-c", "auto_commit_interval_ms=5"],
            2,
            "auto.commit.interval.ms has no place here",
        ),
        (["consume", "t", "-c", "allow.auto.create.topics=true"], 2, "consume creates no topics"),
        (["consume", "t", "-c", "group.instance.id=i"], 2, "group.instance.id is for groups"),
        (["consume", "t", "-c", "exclude.internal.topics=false"], 2, "exclude.internal.topics has no place here"),
        (
            ["pipeline", "archive", "t", "--to", "x", "-c", "session_timeout_ms=6000"],
            2,
            "session.timeout.ms is for groups: an archive has none",
        ),
        (["consume", "t", "-n", "1", "-n", "2"], 2, "--limit is given twice; see kclient consume --help"),
        (["topics", "list", "-b", "a:1", "--bootstrap=b:1"], 2, "--bootstrap is given twice"),
        (["topics", "create", "u", "-p", "-5"], 2, "a new topic's number of partitions is from 1"),
        (["produce", "a b"], 2, "not 'a b'"),
        (["produce", ""], 2, "not ''"),
        (["produce", "t", "-c", "transaction.two.phase.commit.enable=true"], 2, "not supported yet"),
        (["groups", "reset", "", "--to-latest", "-t", "t"], 2, "a group's name is empty"),
        (["pipeline", "archive", "t", "--to", "x", "--spark", "spark.master=local"], 2, "--master says where"),
        (["consume"], 2, "Missing argument 'TOPIC'; see kclient consume --help"),
        (["frobnicate"], 2, "No such command 'frobnicate'; see kclient --help"),
        (["topics", "create", "t", "--partitons", "3"], 2, "see kclient topics create --help"),
        (["topics", "create", "t"], 1, "already exists"),
        (["topics", "alter", "t"], 2, "nothing to change"),
        (["topics", "create", "u", "--set", "retention.ms=soon"], 1, "retention.ms"),
        (["topics", "delete", "nothing"], 1, "nothing"),
        (["groups", "describe", "nobody"], 1, "nobody"),
        (["groups", "reset", "nobody", "--to-earliest"], 2, "has committed nothing"),
        (["groups", "reset", "g"], 2, "say where to"),
        (["groups", "reset", "nobody", "--to-time", "tea"], 2, "--to-time is ISO 8601"),
        (["pipeline", "archive", "--to", "x"], 2, "say what to archive"),
        (["pipeline", "replay", "--from", "x", "--since", "tea"], 2, "--since is ISO 8601"),
        (["pipeline", "replay", "--from", "x", "--offsets", "t:0=5"], 2, "--offsets takes TOPIC:PARTITION=FIRST..END"),
        (["pipeline", "replay", "--from", "x", "--rename", "t"], 2, "--rename takes NAME=VALUE, not 't'"),
        (["pipeline", "replay", "--from", "x", "--rate", "0"], 2, "records_per_second is a number greater than 0"),
        (["pipeline", "replay", "--from", "x", "--id", "a:b"], 2, "a replay's id has at most 200 letters"),
        (["pipeline", "mirror", "--from", "a:1", "--to", "b:1"], 2, "say what to mirror: topics, or --pattern"),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--groups", "("],
            2,
            "groups is a regular expression",
        ),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--id", "a:b"],
            2,
            "a mirror's id has at most 200",
        ),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--every", "0"],
            2,
            "--every takes a number of seconds greater than 0, not 0",
        ),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--every", "5", "--dry-run"],
            2,
            "--dry-run only says what would be written: give one of them",
        ),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--from-config", "x"],
            2,
            "--from-config takes NAME=VALUE, not 'x'",
        ),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--to-config", "key.serializer=x"],
            2,
            "--to-config key.serializer has no place here: records are mirrored as bytes",
        ),
        (
            ["pipeline", "mirror", "t", "--from", "a:1", "--to", "b:1", "--from-config", "session.timeout.ms=6000"],
            2,
            "--from-config session.timeout.ms is for groups: a mirror has none",
        ),
        (["pipeline", "replay", "--from", "x", "-c", "acks=1", "-b", "a:1"], 2, "acks"),
        (["pipeline", "audit", "t", "t@"], 2, "a side is TOPIC, TOPIC@HOST:PORT or TOPIC@archive:DIR, not 't@'"),
        (["pipeline", "audit", "t@a:1", "t@b:1", "--by", "x"], 2, "an audit goes by one of auto, offset, order"),
        (["pipeline", "audit", "t@a:1", "t@b:1", "--ignore", "x"], 2, "key, value, headers, timestamp, not 'x'"),
        (["pipeline", "audit", "t@archive:x", "t@archive:y"], 2, "x holds no archive"),
        (["pipeline", "audit", "t@a:1", "t@b:1", "-c", "group.id=g", "-c", "isolation.lvel=x"], 2, "did you mean"),
        (["pipeline", "replay", "--from", "nothing", "-b", "a:1"], 1, "nothing holds no archive"),
    ],
)
def test_errors_are_one_sentence(shell: Shell, arguments: list[str], code: int, message: str) -> None:
    shell.ok("topics", "create", "t")
    outcome = shell(*arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["t", "--to", "x", "--partition-by", "topic,hour"], 2, "partition_by is one of topic; topic,date;"),
        (["t", "--to", "x", "--compression", "lzo"], 2, "compression is one of brotli"),
        (["t", "--to", "s3://bucket/x"], 2, "the archive's destination cannot be s3://bucket/x"),
        (["t", "--to", "here/file/x"], 1, "here/file is not a folder"),
        (["t", "--to", "x", "-c", "isolation.lvel=x", "-b", "127.0.0.1:1"], 2, "did you mean isolation.level?"),
        (["--pattern", "(", "--to", "x", "-b", "127.0.0.1:1"], 2, "pattern"),
        (["t,u", "--to", "x", "-b", "127.0.0.1:1"], 2, "one by one"),
    ],
)
def test_an_archives_arguments_are_judged_before_anything_is_asked_or_made(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/file").touch()

    def session(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", session)
    outcome = shell("pipeline", "archive", *([] if "-b" in arguments else ["-b", "embedded:typo"]), *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "here"]


def test_no_broker(shell: Shell) -> None:
    outcome = shell("topics", "list", "--bootstrap", "127.0.0.1:1", "--config", "default.api.timeout.ms=500",
                    "--config", "request.timeout.ms=400")  # fmt: skip
    assert outcome.code == 1
    assert "127.0.0.1:1" in outcome.err
    assert "is it running? --bootstrap" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NoBrokersAvailableError("No broker could be reached"), True),
        (BrokerConnectionError("it broke: [Errno 111] Connection refused"), True),
        (KafkaTimeoutError("no answer in 5 s: No broker could be reached"), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),  # Spark's, whose Java has gone
        (KafkaError("the Spark job failed: [Errno 111] Connection refused"), False),
    ],
)
def test_only_brokers_are_asked_whether_they_run(error: Exception, hint: bool) -> None:
    assert ("is it running? --bootstrap" in sentence_of(error)) == hint


# ---- topics ---------------------------------------------------------------------------------------------------


def test_topics(shell: Shell) -> None:
    assert shell.ok("topics", "list").out == ""
    shell.ok("topics", "create", "flights", "--partitions", "2", "--set", "retention.ms=1000")
    shell.ok("topics", "create", "airports", "--replication-factor", "3")
    assert shell.ok("topics", "list").out == "airports\nflights\n"
    described = shell.ok("topics", "describe", "flights").rows
    assert described[:3] == [
        ["topic", "partition", "leader", "replicas", "in sync"],
        ["flights", "0", "1", "1", "1"],
        ["flights", "1", "1", "1", "1"],
    ]
    assert described[-2:] == [["flights", "retention.ms", "1000"], ["flights", "htp.mapping", "domain"]]
    shell.ok("topics", "alter", "flights", "--partitions", "4", "--unset", "retention.ms", "--set", "segment.ms=60000")
    described = shell.ok("topics", "describe", "flights").rows
    assert len([row for row in described if len(row) == 5]) == 1 + 4
    assert [row for row in described if row[-2:-1] == ["segment.ms"]] == [["flights", "segment.ms", "60000"]]
    for refused in ("4", "2"):
        assert shell("topics", "alter", "flights", "--partitions", refused, "--set", "segment.ms=70000").code == 1
    assert shell("topics", "alter", "flights", "--partitions", "5", "--set", "segment.ms=soon").code == 1
    assert shell.ok("topics", "describe", "flights").rows == described
    shell.ok("topics", "delete", "flights", "airports")
    assert shell.ok("topics", "list").out == ""


# ---- groups ---------------------------------------------------------------------------------------------------


def test_groups(shell: Shell) -> None:
    shell.ok("produce", "t", stdin="".join(f'{{"value": "{n}", "timestamp": {n * 1000}}}\n' for n in range(10)))
    shell.ok("consume", "t", "--group", "g", "--from-beginning", "--limit", "4")
    assert shell.ok("groups", "list").out == "g\n"
    assert shell.ok("groups", "list", "--state", "Stable").out == ""
    assert shell.ok("groups", "describe", "g").rows[1] == ["t", "0", "4", "10", "6", "-", "-", "-"]

    def reset(*options: str) -> list[str]:
        outcome = shell.ok("groups", "reset", "g", *options)
        assert ("dry run" in outcome.err) == ("--execute" not in options)
        return outcome.rows[1]

    assert reset("--to-earliest") == ["t", "0", "4", "0"]
    assert reset("--to-latest") == ["t", "0", "4", "10"]
    assert reset("--to-time", "1970-01-01T00:00:06.5Z") == ["t", "0", "4", "7"]
    assert reset("--to-time", "6000", "--topic", "t:0") == ["t", "0", "4", "6"]
    assert reset("--to-offset", "2", "--topic", "t", "--execute") == ["t", "0", "4", "2"]
    assert shell.ok("groups", "list", "--state", "empty").out == "g\n"
    assert shell.ok("groups", "describe", "g").rows[1][2] == "2"
    shell.ok("groups", "delete", "g")
    assert shell.ok("groups", "list").out == ""


def test_groups_are_reset_to_offsets_that_there_are(shell: Shell) -> None:
    shell.ok("produce", "t", stdin="".join(f'{{"value": "{n}"}}\n' for n in range(10)))
    shell.ok("consume", "t", "--group", "g", "--from-beginning", "--limit", "4")
    with Admin(bootstrap_servers=shell.address) as admin:
        admin.delete_records({("t", 0): 3})
    for wanted, taken in (("100", "10"), ("1", "3"), ("99999999999999999999", "10")):
        outcome = shell.ok("groups", "reset", "g", "--to-offset", wanted, "--execute")
        assert outcome.rows[1][-1] == taken
        assert outcome.err == f"kclient: t-0 holds the offsets 3 to 10: {taken} is taken, not {wanted}\n"
        committed, end, lag = shell.ok("groups", "describe", "g").rows[1][2:5]
        assert (committed, int(lag)) == (taken, int(end) - int(taken))


def test_offsets_outside_of_the_log_are_told(shell: Shell) -> None:
    shell.ok("topics", "create", "t", "-p", "2")
    shell.ok("produce", "t", stdin="".join(f'{{"value": "{n}", "partition": 0}}\n' for n in range(5)))
    with Admin(bootstrap_servers=shell.address) as admin:
        admin.delete_records({("t", 0): 2})
    beyond = shell.ok("consume", "t", "-o", "4", "--to-end")
    assert [record["value"] for record in beyond.records] == ["4"]
    assert beyond.err == "kclient: offset 4 lies beyond the end of t-1: beginning at the end there\n"
    gone = shell.ok("consume", "t", "-p", "0", "-o", "0", "--to-end")
    assert [record["value"] for record in gone.records] == ["2", "3", "4"]
    assert gone.err == "kclient: offset 0 is gone from t-0: beginning with the oldest record there\n"


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "t"], ["topics", "list"], ["topics", "describe", "t"], ["topics", "alter", "t", "-p", "3"],
        ["topics", "delete", "t"], ["groups", "list"], ["groups", "describe", "g"], ["groups", "delete", "g"],
        ["groups", "reset", "g", "--to-earliest"], ["info"], ["pipeline", "archive", "t", "--to", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_only_what_writes_makes_a_directory(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for mistyped in ("embedded:typo", "embedded:other"):
        outcome = shell(*words, "--bootstrap", mistyped)
        assert outcome.code == 1
        assert f"there is no broker's directory at {mistyped}" in outcome.err
    assert [path.name for path in tmp_path.rglob("*")] == ["other"]


@pytest.mark.parametrize("command", [["plan"], ["run", "--until-caught-up"], ["verify"], ["cutover"]], ids=" ".join)
def test_what_is_moved_from_is_only_read(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = shell("migrate", *command, "--from", "embedded:typo", "--to", shell.address)
    assert outcome.code == 1
    assert "there is no broker's directory at embedded:typo" in outcome.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_writes_makes_a_directory(tmp_path: Path) -> None:
    for words in (["topics", "create", "t"], ["produce", "u"]):
        address = f"embedded:{tmp_path / words[0]}"
        command = [sys.executable, "-m", "kclient", *words, "--bootstrap", address]
        subprocess.run(command, input=b'{"value": "x"}\n', timeout=60, check=True)
        done = subprocess.run(
            [sys.executable, "-m", "kclient", "topics", "list", "--bootstrap", address],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stdout == f"{words[-1]}\n"


def test_a_name_given_twice_is_one(shell: Shell) -> None:
    shell.ok("produce", "t", stdin='{"value": "x"}\n')
    assert [len(row) for row in shell.ok("topics", "describe", "t", "t").rows if row != [""]] == [5, 5, 3, 3]
    assert len(shell.ok("consume", "t", "t", "-p", "0", "-p", "0", "--from-beginning", "--to-end").records) == 1
    shell.ok("topics", "delete", "t", "t")


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed_are_empty(tmp_path: Path, closed: tuple[int, ...]) -> None:
    address = f"embedded:{tmp_path}"
    with Producer(bootstrap_servers=address) as producer:
        producer.send("t", b"x").result()
    without = " ".join(f"{number}>&-" for number in closed)
    for words in ("consume t --from-beginning --to-end", "topics list", "produce t"):
        script = f"{sys.executable} -m kclient {words} --bootstrap {address} {without}"
        done = subprocess.run(
            ["sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_settings_of_a_client_need_a_cluster(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCLIENT_BOOTSTRAP_SERVERS")
    outcome = shell("info", "--config", "client.id=x")
    assert outcome.code == 2
    assert "name it with --bootstrap" in outcome.err


# ---- the rest -------------------------------------------------------------------------------------------------


def test_info(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = dict(row for row in shell.ok("info").rows)
    assert shown["records"] in ("compiled", "interpreted")
    assert shown["broker"].startswith("memory:")
    monkeypatch.delenv("KCLIENT_BOOTSTRAP_SERVERS")
    assert "cluster" not in dict(row for row in shell.ok("info").rows)


def test_version(shell: Shell) -> None:
    import kclient

    assert shell.ok("--version").out == f"kclient {kclient.__version__}\n"


def test_without_a_command_the_help_stands_on_standard_error(shell: Shell) -> None:
    outcome = shell("topics")
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: kclient topics")


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_consumer_that_is_told_to_end_leaves_its_group(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    address = f"embedded:{tmp_path}"
    with Producer(bootstrap_servers=address) as producer, Admin(bootstrap_servers=address) as admin:
        producer.send("t", b"x").result()
        words = ["consume", "t", "--bootstrap", address, "--group", "g", "--from-beginning"]
        with subprocess.Popen(
            [sys.executable, "-m", "kclient", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert b'"offset":0' in process.stdout.readline()
            assert len(admin.describe_groups(["g"])["g"].members) == 1
            process.send_signal(sent)
            assert process.wait(timeout=30) == code
            assert process.stderr.read() == b""
        assert admin.describe_groups(["g"])["g"].members == ()


def test_help_names_every_command(shell: Shell) -> None:
    shown = shell.ok("--help").out
    for command in ("gateway", "produce", "consume", "topics", "groups", "pipeline", "info"):
        assert command in shown


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("kclient clus", ["cluster"]),
        ("kclient cluster lo", ["log-dirs"]),
        ("kclient cluster status --output y", ["yaml"]),
    ],
)
def test_shells_complete_commands_and_values(words: str, completions: list[str]) -> None:
    asked = {"_KCLIENT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [Path(sys.executable).with_name("kclient")], env={**os.environ, **asked}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == completions


def test_on_a_terminal_tables_are_for_people(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from kclient.cli import output

    shell.ok("topics", "create", "flights", "--partitions", "3")
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    shown = shell.ok("topics", "list").out
    assert "partitions" in shown
    assert "─" in shown
    shell.ok("produce", "flights", stdin='{"value": "v"}\n')
    assert json.loads(shell.ok("consume", "flights", "--from-beginning", "-n", "1").out)["value"] == "v"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_obeys_no_name_of_others(shell: Shell, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    from kclient.cli import output

    with Admin(bootstrap_servers=shell.address) as admin:
        admin.fence_producers(["\x1b[31mred\r\x9b2J", "\u202egnp.exe", "größe"])
    monkeypatch.setattr(output, "is_terminal", lambda: terminal)
    shown = shell.ok("transactions", "list").out
    assert r"\x1b[31mred\r\x9b2J" in shown
    assert r"\u202egnp.exe" in shown
    assert "größe" in shown
    assert not any(obeyed in shown for obeyed in ("\x1b[31m", "\r", "\x9b", "\u202e"))


@pytest.mark.parametrize("rows", [[(1, "x")], []])
def test_brackets_in_a_title_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, str]]
) -> None:
    from kclient.cli import output

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    title = "/a[/b]"
    output.table(["number", "a column that is wide enough"], rows, title=title)
    assert title in capsys.readouterr().out


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(memory: str) -> None:
    environment = {**os.environ, "KCLIENT_BOOTSTRAP_SERVERS": memory}
    code = (
        "import sys; "
        'lines = b\'{"value": "x"}\\n\' * 20000; '
        "from kclient.sync import Producer; "
        "producer = Producer(bootstrap_servers=sys.argv[1]); "
        "[producer.send('t', b'x' * 50) for _ in range(20000)]; producer.flush(); "
        "from kclient.cli import main; main(['consume', 't', '--from-beginning'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, memory], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b'"offset":0' in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
def test_a_reader_that_leaves_ends_also_who_waits(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    with Producer(bootstrap_servers=address) as producer:
        producer.send("t", b"x").result()
        with subprocess.Popen(
            [sys.executable, "-m", "kclient", "consume", "t", "--from-beginning", "--bootstrap", address],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            assert b'"offset":0' in process.stdout.readline()
            process.stdout.close()  # and no other record ever comes
            assert process.wait(timeout=30) == 0
            assert process.stderr.read() == b""


INTERRUPTS = """
import sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            exec("import signal; signal.raise_signal(signal.SIGINT)")

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "name", ["kclient.cli.start", "kclient.cli.errors", "typer", "kclient.cli.app", *slow("anyio", "kclient.sync")]
)
def test_ctrl_c_while_things_are_loaded_ends_quietly(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(name=name))
    words = [sys.executable, "-m", "kclient", "consume", "t", "-b", "memory:x"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


SWALLOWED = """
import signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            try:
                signal.raise_signal(signal.SIGTERM)
            except BaseException as lost:
                assert type(lost).__name__ == "Terminated"

sys.meta_path.insert(0, Finder())
"""
GATEWAY = ["gateway", "--data", "data", "--listen", "127.0.0.1:0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kclient.cli.gateway", GATEWAY),
        ("kclient.sync", ["produce", "t", "-b", "memory:x"]),
        pytest.param("anyio._backends._asyncio", GATEWAY, marks=pytest.mark.slow),
        # by the option parser
        pytest.param("kclient.cli.gateway", [*GATEWAY, "-cnum.partitions=1"], marks=pytest.mark.slow),
        pytest.param("kclient.cli.consume", ["consume", "t", "-b", "memory:x"], marks=pytest.mark.slow),
        pytest.param("kclient.cli.topics", ["topics", "list", "-b", "memory:x"], marks=pytest.mark.slow),
    ],
)
def test_sigterm_that_is_lost_while_things_are_loaded_ends_the_command(
    tmp_path: Path, name: str, words: list[str]
) -> None:
    """CPython's compiler drops what a signal's handler raises in it."""
    (tmp_path / "sitecustomize.py").write_text(SWALLOWED.format(name=name))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    with subprocess.Popen(
        [sys.executable, "-m", "kclient", *words], env=environment, cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.wait(timeout=30) == 143
            assert process.stdout is not None
            assert process.stdout.read() == b""
        finally:
            process.kill()


def test_sigterm_that_is_lost_later_ends_the_work(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a finalizer, for instance."""
    calls = 0

    def losing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:  # another one would kill
                with pytest.raises(Terminated):
                    signal.raise_signal(signal.SIGTERM)
            return function(*args, **options)

        return call

    lines = '{"value": "a"}\n{"value": "b"}\n'
    with monkeypatch.context() as patch:
        patch.setattr(jsonlines, "parse", losing(jsonlines.parse))
        assert shell("produce", "t", stdin=lines).code == 143
    assert calls == 1
    shell.ok("produce", "t", stdin=lines)
    calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "poll", losing(Consumer.poll))
        assert shell("consume", "t", "--from-beginning", "--limit", "100").code == 143
    assert calls == 1


def test_nearly_nothing_is_loaded_before_the_command_line_minds_ctrl_c() -> None:
    code = "import sys; before = set(sys.modules); import kclient.cli; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert set(done.stdout.split()) <= {"__future__", "kclient", "kclient.cli", "kclient.registry", "kclient.version"}


def test_starting_the_command_line_loads_little() -> None:
    code = (
        "import sys; from kclient.cli.app import app; "
        "loaded = [name for name in ('rich', 'pyarrow', 'sqlalchemy', 'pyspark', 'kclient.gateway', 'kclient.sync') "
        "if name in sys.modules]; print(loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_json_of_names_that_others_chose_is_not_obeyed_by_a_terminal() -> None:
    fields = {"name": "a\x9b31m\u202e\x85é\u2028\U000e0001"}
    text = document(fields, "json")
    assert text.isprintable()
    assert "é" in text
    assert json.loads(text) == fields
    assert yaml.safe_load(document(fields, "yaml")) == fields


def test_output_that_its_encoding_cannot_carry(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no error of usage, and the sentence says what to set."""
    with Admin(bootstrap_servers=shell.address) as admin:
        admin.create_topic("t")
        admin.alter_group_offsets("é", {("t", 0): 0})
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
        outcome = shell("groups", "list")
    assert outcome.code == 1
    assert (
        outcome.err == "kclient: the output has characters that the encoding ascii lacks: set PYTHONIOENCODING=utf-8\n"
    )
