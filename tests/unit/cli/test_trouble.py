"""Brokers that die, hang or were never there: said at once on standard error, while the command goes on trying."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from kclient.cli.trouble import Silence, Trouble, patiently
from kclient.cluster.connections import BACK, FAILED, LOST
from kclient.errors import AuthenticationError, BrokerConnectionError, KafkaTimeoutError
from kclient.sync import Admin, Producer
from tests.gateway_process import GatewayProcess

HURRY_S = 30


class Command:
    """A command that runs, and what it says."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kclient", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._out, self._err = queue.Queue[str](), queue.Queue[str]()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=each)
            for each in ((self.process.stdout, self._out), (self.process.stderr, self._err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: queue.Queue[str]) -> None:
        with stream:
            for line in stream:
                lines.put(line)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=HURRY_S)
        for reader in self._readers:
            reader.join()

    def value(self) -> str:
        """Of the next record that is written."""
        return str(json.loads(self._out.get(timeout=HURRY_S))["value"])

    def complaint(self) -> str:
        """The next line on standard error."""
        return self._err.get(timeout=HURRY_S)


@contextlib.contextmanager
def running(*words: str) -> Iterator[Command]:
    command = Command(*words)
    try:
        yield command
    finally:
        command.end()


def send(bootstrap: str, value: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send("t", value.encode()).result(timeout=HURRY_S)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--group", "g"]], ids=["alone", "in a group"])
def test_a_consumer_outlives_its_broker_and_says_so(tmp_path: Path, options: list[str]) -> None:
    broker = GatewayProcess(tmp_path)
    broker.start()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("t", partitions=1)
    broker.stop()
    words = ["consume", "t", "--bootstrap", broker.bootstrap, "--from-beginning", *options]
    try:
        with running(*words) as consumer:
            assert f"{broker.bootstrap} cannot be reached (Connection refused); trying again" in consumer.complaint()
            broker.start()
            assert f"{broker.bootstrap} is reached again" in consumer.complaint()
            send(broker.bootstrap, "first")
            assert consumer.value() == "first"

            broker.stop(kill=True)
            assert f"the connection to {broker.bootstrap} is lost (" in consumer.complaint()
            broker.start()
            assert f"{broker.bootstrap} is reached again" in consumer.complaint()
            send(broker.bootstrap, "second")
            assert consumer.value() == "second"

            os.kill(broker.pid, signal.SIGSTOP)
            # in a group it may be a commit that waits: then its timeout is told
            told = re.compile(
                r"the broker has not answered for 5 s; waiting for it|did not answer \w+ v\d+ within 10 s"
            )
            assert told.search(consumer.complaint())
            os.kill(broker.pid, signal.SIGCONT)
            while not re.search("the broker answers again|is reached again", consumer.complaint()):
                pass  # what was asked meanwhile has timed out as well
    finally:
        broker.stop(kill=True)


def test_a_producer_says_what_it_waits_for(tmp_path: Path) -> None:
    words = ["produce", "t", "--bootstrap", "127.0.0.1:1", "--config", "max.block.ms=500"]
    done = subprocess.run(
        [sys.executable, "-m", "kclient", *words], input='{"value": "x"}\n', capture_output=True, text=True,
        timeout=HURRY_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert "127.0.0.1:1 cannot be reached (Connection refused); trying again" in first
    assert "is it running? --bootstrap" in last


class Teller:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.trouble = Trouble(self.said.append)

    def log(self, text: str, *arguments: object, name: str = "kclient.cluster", level: int = 20) -> None:
        import logging

        self.trouble.handle(logging.LogRecord(name, level, __file__, 1, text, arguments, None))


def test_each_address_is_told_of_once_until_it_is_back() -> None:
    teller = Teller()
    refused = BrokerConnectionError("no", attempts=[("a:1", ConnectionRefusedError(111, "Connection refused"))])
    for _ in range(3):
        teller.log(FAILED, "a:1", refused)
    teller.log(LOST, "b:2", BrokerConnectionError("it broke: the connection to b:2 ended: the broker closed it"))
    assert teller.trouble.down == {"a:1", "b:2"}
    teller.log(BACK, "b:2")
    teller.log(BACK, "c:3")
    teller.log(FAILED, "b:2", refused)
    assert [said.split(";")[0] for said in teller.said] == [
        "a:1 cannot be reached (Connection refused)",
        "the connection to b:2 is lost (the broker closed it)",
        "b:2 is reached again",
        "b:2 cannot be reached (Connection refused)",
    ]


def test_what_the_client_raises_anyway_is_not_told_before() -> None:
    teller = Teller()
    teller.log(FAILED, "a:1", AuthenticationError("who are you", retriable=False), level=30)
    teller.log("the consumer failed: %r", ValueError("x"), name="kclient.consumer", level=40)
    teller.log("metadata: %s", "No broker could be reached", level=30)
    assert teller.said == []
    teller.log("topic %r does not exist", "t", name="kclient.consumer", level=30)
    assert teller.said == ["topic 't' does not exist"]


def test_silence_is_told_only_where_an_answer_is_due(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, answers = 0.0, 0
    monkeypatch.setattr("time.monotonic", lambda: now)
    trouble = Teller().trouble
    silence = Silence(trouble, lambda: answers)

    def after(seconds: float, *, expected: bool = True) -> str:
        nonlocal now
        now += seconds
        silence.look(expected=expected)
        return capsys.readouterr().err

    assert after(4) == ""
    assert after(100, expected=False) == ""  # it was busy writing
    assert after(4) == ""
    assert "has not answered for 5 s" in after(2)
    assert after(60) == ""
    answers += 1
    assert "the broker answers again" in after(1)
    assert after(4) == ""
    trouble.down.add("a:1")  # that has been told
    assert after(60) == ""


def test_patience_ends_where_trying_again_cannot_help() -> None:
    failures = [
        KafkaTimeoutError("slow"),
        BrokerConnectionError("refused"),
        AuthenticationError("who", retriable=False),
    ]

    def ask(timeout: float) -> int:
        raise failures.pop(0)

    with pytest.raises(AuthenticationError):
        patiently(ask)
    assert failures == []
