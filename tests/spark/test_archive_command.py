"""`kclient pipeline archive` as people run it: a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kclient.sync import Producer
from tests.conftest import require_java
from tests.spark.archives import create, fill, fill_many, staged
from tests.spark.conftest import EndedCommand

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def command(*arguments: object, gateway: str) -> list[str]:
    words = [sys.executable, "-m", "kclient", "pipeline", "archive", *map(str, arguments)]
    return [*words, "--bootstrap", gateway, "--master", "local[2]"]


def run(*arguments: object, gateway: str, **environment: str) -> subprocess.CompletedProcess[str]:
    require_java()
    return subprocess.run(
        command(*arguments, gateway=gateway),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, **environment},
    )


def test_archives(tmp_path: Path, gateway: str, topic: str) -> None:
    target = tmp_path / "archive"
    with Producer(bootstrap_servers=gateway) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
    done = run(topic, "--to", target, "-c", "isolation.level=read_uncommitted", gateway=gateway)
    assert (done.returncode, done.stderr) == (0, "")
    header, row = (line.split("\t") for line in done.stdout.splitlines())
    assert header[:3] == ["topic", "partitions", "records"]
    assert (row[0], row[2]) == (topic, "100")
    assert list(target.glob(f"topic={topic}/date=*/*.parquet"))


def test_a_dry_run_says_what_would_be_archived(tmp_path: Path, gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    arguments = (topic, "--to", tmp_path / "archive", "--max-offsets", "4", "--dry-run")
    done = run(*arguments, gateway=gateway, JAVA_HOME="/nonexistent")  # without Spark
    assert done.returncode == 0, done.stderr
    header, row = (line.split("\t") for line in done.stdout.splitlines())
    assert (header, row) == (["topic", "partitions", "offsets to read"], [topic, "2", "4"])
    done = run(*arguments, "--json", gateway=gateway, JAVA_HOME="/nonexistent")
    assert json.loads(done.stdout)["remaining"] == 6
    code, shown = shown_on_a_terminal(command(*arguments, gateway=gateway))
    assert code == 0
    assert "6 offsets are left to later runs" in shown
    assert list(tmp_path.iterdir()) == []


def test_the_summary_as_json(tmp_path: Path, gateway: str, topic: str, pipeline: Callable[..., EndedCommand]) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    done = pipeline("archive", topic, "--to", tmp_path, "--min-partitions", 4, "--json", "--bootstrap", gateway)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["manifest"], told["records"], told["remaining"], told["dry_run"]) == (1, 10, 0, False)
    assert told["topics"][0]["size"] == sum(path.stat().st_size for path in tmp_path.glob("topic=*/date=*/*.parquet"))


def test_what_is_lost_is_said(tmp_path: Path, gateway: str, topic: str, pipeline: Callable[..., EndedCommand]) -> None:
    from kclient.sync import Admin

    create(gateway, topic)
    words = ("archive", topic, "--to", tmp_path, "--bootstrap", gateway)
    assert pipeline(*words).returncode == 0
    fill(gateway, topic, range(10))
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_records({(topic, 0): 3})
    refused = pipeline(*words)
    assert refused.returncode == 1
    assert f"{topic}-0 from 0 to before 3" in refused.stderr
    assert "--allow-data-loss" in refused.stderr
    assert refused.stderr.count("\n") == 1
    done = pipeline(*words, "--allow-data-loss")
    assert (done.returncode, done.stderr) == (0, f"kclient: {topic}: 3 offsets were gone before they were archived\n")


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (["there-is-no-such-topic", "--to", "x"], {}, 1, "no such topic: there-is-no-such-topic"),
        (["t", "--to", "s3://bucket/x"], {}, 2, "the archive's destination cannot be s3://bucket/x"),
        (["t", "--to", "x", "-c", "isolation.lvel=x"], {}, 2, "did you mean isolation.level?"),
        (
            ["TOPIC", "--to", "x", "--spark", "spark.driver.memory=lots"],
            {},
            1,
            "Spark did not start: Invalid maximum heap",
        ),
        (["TOPIC", "--to", "x"], {"JAVA_HOME": "/nonexistent"}, 1, "Spark did not start: "),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path,
    gateway: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    create(gateway, topic)
    done = run(*(topic if word == "TOPIC" else word for word in arguments), gateway=gateway, **environment)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("s3*"))


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_prints_nothing_and_leaves_nothing(
    tmp_path: Path, gateway: str, topic: str, sent: signal.Signals, code: int
) -> None:
    """The signal goes to all processes, Spark's too, as from a terminal or from what ends a whole service."""
    require_java()
    create(gateway, topic)
    fill_many(gateway, topic, 400_000)
    words = command(topic, "--to", tmp_path, gateway=gateway)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        staging = tmp_path / "_kclient/staging"
        while not (staging.exists() and list(staging.rglob("progress/*"))):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, sent)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (code, b"", b"")
    assert staged(tmp_path) == []


def test_an_interruption_while_spark_starts_ends_its_java(tmp_path: Path, gateway: str, topic: str) -> None:
    require_java()
    create(gateway, topic)
    words = command(topic, "--to", tmp_path, gateway=gateway)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        while not children(process.pid):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        # Java has these pipes too: they end when it has ended
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


def shown_on_a_terminal(words: list[str]) -> tuple[int, str]:
    """The exit code and what people saw."""
    terminal, end = pty.openpty()
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=end, stderr=end) as process:
        os.close(end)
        shown = b""
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(terminal, 1 << 16):
                shown += piece
        os.close(terminal)
    return process.returncode, shown.decode()


def test_people_see_that_spark_starts(tmp_path: Path, gateway: str, topic: str) -> None:
    require_java()
    create(gateway, topic)
    code, shown = shown_on_a_terminal(command(topic, "--to", tmp_path, gateway=gateway))
    assert code == 0
    assert "starting Spark" in shown


def test_topics_and_brokers_are_looked_for_before_spark_starts(tmp_path: Path, gateway: str) -> None:
    for environment in ({"JAVA_HOME": "/nonexistent"}, {}):  # whether or not Spark can start
        done = run("there-is-no-such-topic", "--to", tmp_path, gateway=gateway, **environment)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no such topic: there-is-no-such-topic" in done.stderr
    code, shown = shown_on_a_terminal(
        command("t", "--to", tmp_path, "-c", "default.api.timeout.ms=1500", gateway="127.0.0.1:1")
    )
    assert code == 1
    assert "starting Spark" not in shown
    first, last = shown.splitlines()
    assert first == "127.0.0.1:1 cannot be reached (Connection refused); trying for 1.5 s, Ctrl-C ends it"
    assert "did not succeed within 1.5 s" in last
    assert list(tmp_path.iterdir()) == []


def test_an_archive_command_gives_up_as_others_do(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = run("t", "--to", tmp_path, gateway="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did not succeed within 15 s" in done.stderr
    assert time.monotonic() - begun < 50  # the client's own patience is 60 s


def children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]
