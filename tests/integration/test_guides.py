"""The programs in the guides run as they stand."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import kclient
from kclient.admin import NewTopic
from kclient.processing import DeadLetter, ProcessingFailure, Retry
from kclient.types import TopicPartition
from tests.conftest import require_java
from tests.gateway_process import GatewayProcess
from tests.stored import stored_records
from tests.traced import Spans, id_of, linked

if TYPE_CHECKING:
    from tests.kafka_server import KafkaServer

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guide"
README = ROOT / "README.md"


def snippets(page: str) -> list[str]:
    """The Python blocks of a page; no block is a failure of this test, not of the page."""
    found = re.findall(r"^( *)```python\n(.*?)^ *```", (GUIDES / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    return [textwrap.dedent(text) for _, text in found]


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text, "utf-8")
    return run(folder, "-W", "error::ResourceWarning", "program.py")


def test_getting_started(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    try:
        asynchronous, blocking = (
            text.replace("127.0.0.1:9092", gateway.bootstrap) for text in snippets("getting-started.md")
        )
        assert re.search(r"^greetings \d 0 b'hello'$", program(tmp_path, asynchronous), re.MULTILINE)
        assert program(tmp_path, blocking).count("b'customer-1'") == 3
    finally:
        gateway.stop()


def test_clients(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("bootstrap.servers=localhost:9092\n", "utf-8")
    shown = program(tmp_path, "\n".join(snippets("clients.md")))
    assert "0 1 None 4" in shown
    assert shown.endswith("orders-0 2 2 0\n")


def test_overview(tmp_path: Path) -> None:
    asynchronous, blocking, columns = snippets("../index.md")
    assert "b'N14228' b'on time'" in program(tmp_path, asynchronous)
    assert program(tmp_path, blocking).count("b'customer-1' {'number': ") == 3
    assert program(tmp_path, columns) == "[b'tick', b'tock']\n"


def test_gateway(tmp_path: Path) -> None:
    one, several = snippets("gateway.md")
    assert program(tmp_path, one).startswith("127.0.0.1:")
    assert sorted(literal_eval(program(tmp_path, several))) == [1, 2]


@pytest.mark.parametrize("number", [0, 1])
def test_testing(tmp_path: Path, number: int) -> None:
    (tmp_path / "test_guide.py").write_text(snippets("testing.md")[number], "utf-8")
    assert "passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guide.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readmes_commands_as_they_are_pasted(tmp_path: Path) -> None:
    """The whole block at once, into a shell."""
    require_java()
    (block,) = re.findall(r"## On the command line\n\n```\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "KCLIENT_BOOTSTRAP_SERVERS": address}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash"], input=block.replace("127.0.0.1:9092", address), cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert '"key":"N14228","value":"on time"' in done.stdout
    assert re.search(r"^flights\t\d\t1\t1\t0\t", done.stdout, re.MULTILINE), "the group has read everything"
    assert re.search(r"^flights\t1\t1\t1\t\d+$", done.stdout, re.MULTILINE), "the archive holds one record"
    assert list(tmp_path.glob("archive/topic=flights/date=*/*.parquet"))


@pytest.mark.kafka
@pytest.mark.anyio
async def test_transactions(kafka: KafkaServer, anyio_backend_name: str) -> None:
    """Both functions of the page, the second one cancelled when it has copied."""
    invoices, bookings, source, target = topics = [
        f"{name}-{anyio_backend_name}" for name in ("invoices", "bookings", "in", "out")
    ]
    names: dict[str, Any] = {}
    for text in snippets("transactions.md"):
        code = text.replace("localhost:9092", kafka.bootstrap)
        for topic in topics:  # the other event loop has its own
            code = code.replace(f'"{topic.partition("-")[0]}"', f'"{topic}"')
        exec(code, names)
    async with kclient.Admin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 1, 1) for name in topics])
    await names["bill"]()
    for name in (invoices, bookings):
        assert [record.value for record in await stored_records(kafka.bootstrap, TopicPartition(name, 0))] == [b"1"]
    async with kclient.Producer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_batch(source, [b"a", b"b"])
    copied = TopicPartition(target, 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(names["copy"])
        async with kclient.Consumer(bootstrap_servers=kafka.bootstrap, isolation_level="read_committed") as consumer:
            with anyio.fail_after(60):
                while (await consumer.end_offsets([copied]))[copied] < 3:
                    await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert [record.value for record in await stored_records(kafka.bootstrap, copied)] == [b"a", b"b"]


@pytest.mark.kafka
@pytest.mark.anyio
@pytest.mark.timeout(180)
async def test_share_groups(kafka: KafkaServer, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The functions of the page, one after the other in one group."""
    names: dict[str, Any] = {}
    for text in snippets("share-groups.md"):
        exec(text.replace('"jobs"', f'"{topic}"').replace("timeout=10.0", "timeout=7.0"), names)
    group = f"share-{topic}"
    async with kclient.Admin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.create_topic(topic, 1)
    await names["begin_with_the_oldest"](kafka.bootstrap, group)
    handled: list[bytes] = []
    async with kclient.Producer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_batch(topic, [b"a", b"b"])
        await producer.flush()
        await names["work"](kafka.bootstrap, group, lambda record: handled.append(record.value))
        assert handled == [b"a", b"b"]

        def handle(record: kclient.ConsumerRecord) -> None:
            if record.value == b"reject":
                raise ValueError
            if record.delivery_count == 1:
                raise OSError
            handled.append(record.value)

        await producer.send_batch(topic, [b"c", b"reject"])
        await producer.flush()
        await names["work_carefully"](kafka.bootstrap, group, handle)
        assert handled == [b"a", b"b", b"c"]
        steps = iter([False, True])
        await (await producer.send(topic, value=b"d"))
        await names["work_slowly"](kafka.bootstrap, group, lambda record: next(steps))
        assert not list(steps)
    assert not capsys.readouterr().out


@pytest.mark.anyio
async def test_processing(gateway: str, anyio_backend_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is rated, what fails and is written elsewhere, and the figures of a processor that is stopped."""
    orders, rated, failed = topics = [f"{name}-{anyio_backend_name}" for name in ("orders", "rated", "orders-failed")]
    names: dict[str, Any] = {}
    for text in snippets("processing.md"):
        code = text.replace("localhost:9092", gateway).replace('"rating', f'"{anyio_backend_name}-rating')
        for topic in topics:  # the other event loop has its own
            code = code.replace(f'"{topic.removesuffix(f"-{anyio_backend_name}")}"', f'"{topic}"')
        exec(code, names)
    async with kclient.Admin(bootstrap_servers=gateway) as admin:
        await admin.create_topics([NewTopic(name, 1, 1) for name in topics])
    async with kclient.Producer(bootstrap_servers=gateway) as producer:
        for value in (b"a", None, b"b"):
            await producer.send(orders, value)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(names["rate_orders"])
        async with kclient.Consumer(
            rated, bootstrap_servers=gateway, isolation_level="read_committed", auto_offset_reset="earliest",
            group_id=f"{anyio_backend_name}-reader",
        ) as consumer:  # fmt: skip
            found: list[bytes] = []
            with anyio.fail_after(60):
                while len(found) < 2:
                    found += [record.value for record in await consumer.poll(0.5)]
        tasks.cancel_scope.cancel()
    assert found == [b"aa", b"bb"]
    failure = ProcessingFailure(TopicPartition(orders, 0), 0, (), ValueError("x"), 1)
    assert names["on_error"](failure) == DeadLetter(failed)
    assert names["on_error"](replace(failure, error=TimeoutError())) == Retry(2.0)
    assert names["on_error"](replace(failure, error=TimeoutError(), attempts=5)) == DeadLetter(failed)

    before = signal.getsignal(signal.SIGTERM)
    try:
        async with (
            kclient.Producer(bootstrap_servers=gateway, transactional_id=f"{anyio_backend_name}-again") as producer,
            kclient.Consumer(
                orders, bootstrap_servers=gateway, group_id=f"{anyio_backend_name}-again", enable_auto_commit=False,
                isolation_level="read_committed", auto_offset_reset="earliest",
            ) as consumer,
        ):  # fmt: skip

            def function(record: kclient.ConsumerRecord) -> None:
                if record.value == b"b":
                    signal.raise_signal(signal.SIGTERM)

            with anyio.fail_after(60):
                await names["run"](consumer, producer, function)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().out.startswith("3 read, 0 written, 1 commits, lag 0")


@pytest.mark.anyio
async def test_tracing(gateway: str, topic: str) -> None:
    names: dict[str, Any] = {}
    for text in snippets("tracing.md"):
        exec(text.replace('"flights"', f'"{topic}"').replace('"delays"', f'"{topic}-2"'), names)
    spans = Spans()
    async with kclient.Producer(bootstrap_servers=gateway, tracing=spans.provider) as producer:
        await (await producer.send(topic, b"late"))
    with anyio.fail_after(60):
        await names["pass_on"](gateway, spans.provider)
    processed, passed = spans.one(f"process {topic}"), spans.one(f"send {topic}-2")
    assert linked(processed) == {id_of(spans.one(f"send {topic}"))}
    assert passed.parent == processed.get_span_context()


def test_testing_without_pytest(tmp_path: Path) -> None:
    program(tmp_path, snippets("testing.md")[2])
