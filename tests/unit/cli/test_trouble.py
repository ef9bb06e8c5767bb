"""Brokers that die, hang or were never there: said at once on standard error, while the command goes on trying."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from kclient.cli.app import run
from kclient.cli.trouble import Patience, Trouble, patiently, told
from kclient.cluster.news import BrokerEvent, BrokerNews, tell
from kclient.errors import AuthenticationError, BrokerConnectionError, KafkaTimeoutError
from kclient.sync import Admin, Consumer, Producer
from tests.gateway_process import GatewayProcess
from tests.sweeps import slow

HURRY_S = 30


class Command:
    """A command that runs, and what it says."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kclient", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
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

    def feed(self, *lines: str) -> None:
        """Write lines to its standard input, which stays open."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=HURRY_S)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        for reader in self._readers:
            reader.join()

    def value(self) -> str:
        """Of the next record that is written."""
        return str(json.loads(self._out.get(timeout=HURRY_S))["value"])

    def complaint(self) -> str:
        """The next line on standard error."""
        return self._err.get(timeout=HURRY_S)

    def complaints(self) -> str:
        """What there is on standard error until now, or all if it has ended."""
        if self.process.poll() is not None:
            for reader in self._readers:
                reader.join()
        return "".join(self._err.get() for _ in range(self._err.qsize()))


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
            assert f"{broker.bootstrap} answers again" in consumer.complaint()
            send(broker.bootstrap, "first")
            assert consumer.value() == "first"

            broker.stop(kill=True)
            assert f"the connection to {broker.bootstrap} is lost (" in consumer.complaint()
            broker.start()
            assert f"{broker.bootstrap} answers again" in consumer.complaint()
            send(broker.bootstrap, "second")
            assert consumer.value() == "second"

            os.kill(broker.pid, signal.SIGSTOP)
            # in a group it may be a commit that waits: then its timeout is told
            assert f"{broker.bootstrap} has not answered for 5 s; trying again" in consumer.complaint()
            os.kill(broker.pid, signal.SIGCONT)
            while f"{broker.bootstrap} answers again" not in consumer.complaint():
                pass  # what was asked meanwhile may have timed out as well
    finally:
        broker.stop(kill=True)


@pytest.mark.slow
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


@contextlib.contextmanager
def black_hole() -> Iterator[tuple[str, Callable[[], object]]]:
    """The address of a broker that accepts and never answers, and what waits until somebody connects."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(HURRY_S)
        yield f"127.0.0.1:{listener.getsockname()[1]}", lambda: sockets.enter_context(listener.accept()[0])


@pytest.mark.slow
@pytest.mark.parametrize("words", [["consume", "t"], ["consume", "t", "--group", "g"], ["produce", "t"]], ids=" ".join)
def test_a_broker_that_never_answers_is_told_after_five_seconds(words: list[str]) -> None:
    with black_hole() as (address, _), running(*words, "--bootstrap", address) as command:
        if words[0] == "produce":
            command.feed('{"value": "x"}')
        begun = time.monotonic()
        assert f"{address} has not answered for 5 s; trying again" in command.complaint()
        assert time.monotonic() - begun < 9  # not with the request's timeout of 10 s


@pytest.mark.slow
def test_a_broker_that_has_nothing_to_say_is_not_blamed(tmp_path: Path) -> None:
    broker = GatewayProcess(tmp_path)
    broker.start()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("t", partitions=1)
        admin.create_topic("other", partitions=1)
    try:
        words = ["--bootstrap", broker.bootstrap, "--from-beginning", "--config", "fetch.max.wait.ms=15000"]
        with running("consume", "t", *words) as waits, running("consume", "other", *words) as deleted:
            send(broker.bootstrap, "first")
            assert waits.value() == "first"
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                admin.delete_topics(["other"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                deleted.process.wait(9)  # longer than a broker may be silent
            assert "answer" not in waits.complaints() + deleted.complaints()
    finally:
        broker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unreachable", *slow("hung", "killed")])
def test_an_interrupted_producer_says_what_was_acknowledged(tmp_path: Path, how: str) -> None:
    broker = GatewayProcess(tmp_path)
    broker.start()
    if how == "unreachable":
        broker.stop()
    try:
        with black_hole() as (address, accept):
            words = ["--bootstrap", address if how == "hung" else broker.bootstrap]
            with running("produce", "t", *words) as producer:
                producer.feed(*['{"value": "x"}'] * 3)
                acknowledged = 0
                if how == "killed":
                    with Consumer("t", group_id="g", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest",
                                  metadata_max_age_ms=200) as consumer:  # fmt: skip
                        while acknowledged < 3:
                            acknowledged += len(consumer.poll(timeout=1))
                    broker.stop(kill=True)
                    # more than a pipe holds: some of it has been read when all is written
                    producer.feed(*[json.dumps({"value": "y" * 100_000})] * 4)
                if how != "hung":
                    assert broker.bootstrap in producer.complaint()
                else:
                    accept()
                begun = time.monotonic()
                producer.process.send_signal(signal.SIGINT)
                assert producer.process.wait(timeout=HURRY_S) == 130
                assert time.monotonic() - begun < 4
                said = producer.complaints().splitlines()
    finally:
        if how == "killed":
            broker.start()
        broker.stop()
    assert len(said) == 1
    found = re.fullmatch(
        r"kclient: interrupted: (\d+) records were acknowledged, (\d+) were not( \(those .*)?", said[0]
    )
    assert found is not None, said
    assert int(found[1]) == acknowledged
    # where the first line waits for a broker, the others have not been read
    assert int(found[2]) in (range(1, 5) if how == "killed" else [1])


class Teller:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.trouble = Trouble(self.said.append, "trying on")

    def log(self, text: str, *arguments: object, name: str = "kclient.cluster", level: int = 20) -> None:
        import logging

        self.trouble.handle(logging.LogRecord(name, level, __file__, 1, text, arguments, None))

    def hear(
        self, event: BrokerEvent, address: str, error: BaseException | None = None, *, bootstrap: bool = False
    ) -> None:
        self.trouble.hear(BrokerNews(address, event, error, bootstrap))


def test_each_address_is_told_of_once_until_it_is_back() -> None:
    teller = Teller()
    refused = BrokerConnectionError("no", attempts=[("a:1", ConnectionRefusedError(111, "Connection refused"))])
    ended = BrokerConnectionError("it broke: the connection to b:2 ended: the broker closed it")
    for _ in range(3):
        teller.hear(BrokerEvent.UNREACHABLE, "a:1", refused)
    teller.hear(BrokerEvent.LOST, "b:2", ended)
    assert teller.trouble.nobody_answers
    assert teller.said[0] == "a:1 cannot be reached (Connection refused); trying on, Ctrl-C ends it"
    teller.hear(BrokerEvent.BACK, "b:2")
    teller.hear(BrokerEvent.BACK, "c:3")
    teller.hear(BrokerEvent.SILENT, "b:2")
    teller.hear(BrokerEvent.LOST, "b:2", ended)
    assert [said.split(";")[0] for said in teller.said] == [
        "a:1 cannot be reached (Connection refused)",
        "the connection to b:2 is lost (the broker closed it)",
        "b:2 answers again",
        "b:2 has not answered for 5 s",
    ]


def test_dead_bootstrap_servers_do_not_count_where_another_one_answers() -> None:
    teller, refused = Teller(), ConnectionRefusedError(111, "Connection refused")
    for address in ("dead:1", "late:2"):
        teller.hear(BrokerEvent.UNREACHABLE, address, refused, bootstrap=True)
    assert teller.trouble.nobody_answers
    teller.hear(BrokerEvent.BACK, "late:2", bootstrap=True)
    assert not teller.trouble.nobody_answers
    teller.hear(BrokerEvent.LOST, "late:2", refused, bootstrap=True)
    assert not teller.trouble.nobody_answers
    assert teller.said[2:] == ["late:2 answers again"]
    teller.hear(BrokerEvent.SILENT, "late:2", bootstrap=True)
    teller.hear(BrokerEvent.REACHED, "b:3")
    assert not teller.trouble.nobody_answers
    teller.hear(BrokerEvent.LOST, "b:3", refused)
    assert teller.trouble.nobody_answers


def test_one_broker_of_several_in_trouble_is_not_all_of_them() -> None:
    teller, refused = Teller(), ConnectionRefusedError(111, "Connection refused")
    for address in ("a:1", "b:2"):
        teller.hear(BrokerEvent.REACHED, address)
    teller.hear(BrokerEvent.LOST, "a:1", refused)
    assert not teller.trouble.nobody_answers
    teller.hear(BrokerEvent.SILENT, "b:2")
    assert teller.trouble.nobody_answers
    teller.hear(BrokerEvent.LEFT, "a:1")
    teller.hear(BrokerEvent.LEFT, "c:3")
    teller.hear(BrokerEvent.BACK, "b:2")
    assert not teller.trouble.nobody_answers
    assert teller.said[2:] == ["a:1 is no longer a broker of the cluster", "b:2 answers again"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["consume", "t"], "; trying again and again, Ctrl-C ends it"),
        (["produce", "t"], "; trying again until records time out, Ctrl-C ends it"),
    ],
)
def test_it_is_said_how_long_a_command_tries(words: list[str], said: str) -> None:
    with running(*words, "--bootstrap", "127.0.0.1:1") as command:
        if words[0] == "produce":
            command.feed('{"value": "x"}')
        assert command.complaint().endswith(f"(Connection refused){said}\n")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "trying for 15 s"),
        (["default.api.timeout.ms=1500"], "trying for 1.5 s"),
        (["default_api_timeout_ms=500"], "trying for 0.5 s"),
    ],
)
def test_other_commands_say_when_they_give_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], config: list[str], said: str
) -> None:
    given = [word for pair in config for word in ("--config", pair)]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    def ask(*_: object, **__: object) -> list[object]:
        tell("a:1", BrokerEvent.SILENT)
        return []

    monkeypatch.setattr(Admin, "list_topics", ask)
    assert run(["topics", "list", "--bootstrap", "memory:trouble", *given]) == 0
    assert capfd.readouterr().err == f"a:1 has not answered for 5 s; {said}, Ctrl-C ends it\n"


@pytest.mark.slow
def test_one_dead_bootstrap_server_is_no_news(tmp_path: Path) -> None:
    broker = GatewayProcess(tmp_path)
    broker.start()
    said: list[str] = []
    try:
        with told(said.append) as trouble:
            for _ in range(3):  # the dead one comes first
                with Producer(bootstrap_servers=f"127.0.0.1:1,{broker.bootstrap}") as producer:
                    producer.send("t", b"x").result(timeout=HURRY_S)
            assert not trouble.nobody_answers
            assert said == []
            with Producer(bootstrap_servers=f"127.0.0.1:1,{broker.bootstrap}") as producer:
                producer.send("t", b"x").result(timeout=HURRY_S)
                broker.stop(kill=True)
                delivery = producer.send("t", b"x")
                while not trouble.nobody_answers:
                    time.sleep(0.01)
                broker.start()
                delivery.result(timeout=HURRY_S)
                assert not trouble.nobody_answers
    finally:
        broker.stop()
    assert said[0].startswith(f"the connection to {broker.bootstrap} is lost (")
    assert said[-1] == f"{broker.bootstrap} answers again"


@pytest.mark.slow
def test_one_hung_bootstrap_server_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.cluster.news.SILENT_S", 2.0)  # longer than until another one is asked
    broker = GatewayProcess(tmp_path)
    broker.start()
    said: list[str] = []
    try:
        with (
            black_hole() as (address, _),
            told(said.append) as trouble,
            Producer(bootstrap_servers=f"{address},{broker.bootstrap}", metadata_max_age_ms=300) as producer,
        ):
            end = time.monotonic() + 4
            while time.monotonic() < end:
                producer.send("t", b"x").result(timeout=HURRY_S)
            assert not trouble.nobody_answers
    finally:
        broker.stop()
    assert said == []


def test_all_bootstrap_servers_dead_is_told_of_each() -> None:
    said: list[str] = []
    servers = "127.0.0.1:1,127.0.0.1:2"
    with told(said.append) as trouble, Producer(bootstrap_servers=servers, max_block_ms=500) as producer:
        with pytest.raises(KafkaTimeoutError):
            producer.partitions_for("t")
        assert trouble.nobody_answers
    assert sorted(text.split()[0] for text in said) == ["127.0.0.1:1", "127.0.0.1:2"]


def test_what_the_client_raises_anyway_is_not_told_before() -> None:
    teller = Teller()
    teller.hear(BrokerEvent.UNREACHABLE, "a:1", AuthenticationError("who are you", retriable=False))
    teller.log("the consumer failed: %r", ValueError("x"), name="kclient.consumer", level=40)
    teller.log("metadata: %s", "No broker could be reached", level=30)
    assert teller.said == []
    teller.log("topic %r does not exist", "t", name="kclient.consumer", level=30)
    assert teller.said == ["topic 't' does not exist"]


def test_nothing_is_told_after_the_block() -> None:
    said: list[str] = []
    with told(said.append):
        tell("a:1", BrokerEvent.SILENT)
    tell("b:2", BrokerEvent.SILENT)
    assert [text.split()[0] for text in said] == ["a:1"]


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


def test_patience_that_has_an_end() -> None:
    timeouts: list[float] = []

    def ask(timeout: float) -> int:
        timeouts.append(timeout)
        raise (BrokerConnectionError if len(timeouts) == 1 else KafkaTimeoutError)("no")

    with pytest.raises(KafkaTimeoutError):
        Patience("60000")(ask)
    assert 60 >= timeouts[0] > timeouts[1] > 30
    timeouts.clear()
    with pytest.raises(BrokerConnectionError):
        Patience(0)(ask)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["t"], *slow(["t", "--group", "g"], ["t", "--from-beginning", "--to-end", "-c", "default_api_timeout_ms=1500"])],
)
def test_a_consumer_gives_up_if_it_is_told_when(words: list[str]) -> None:
    config = [] if "-c" in words else ["-c", "default.api.timeout.ms=1500"]
    with running("consume", *words, *config, "--bootstrap", "127.0.0.1:1") as command:
        assert command.process.wait(timeout=HURRY_S) == 1
        said = command.complaints().splitlines()
    assert said[0].endswith("; trying for 1.5 s, Ctrl-C ends it")
    assert "did not succeed within 1.5 s (default.api.timeout.ms" in said[1]
    assert len(said) == 2
