"""Fixtures for every test: the two event loops, real Kafka servers, and the gateway in their place."""

from __future__ import annotations

import gc
import os
import re
import signal
import uuid
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from kclient.memory_ledger import process_memory
from tests.kafka_artifacts import KAFKA_3, KAFKA_4, missing_tools
from tests.proved import collect, hand_in, summary

if TYPE_CHECKING:
    from tests.kafka_cluster import KafkaCluster
    from tests.kafka_listeners import SecureListeners
    from tests.kafka_server import KafkaServer

# Shared machines stall at times, so a slow example is no failure; the run is bounded by the number of examples.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", parent=settings.get_profile("random"), max_examples=10)
settings.register_profile("thorough", parent=settings.get_profile("random"), max_examples=2000)
# the same examples every time, so that a change is judged by what it changes; the others look for new ones
settings.register_profile("default", parent=settings.get_profile("random"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell has what it starts in the background ignore Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def own_memory() -> None:
    """What other tests left behind in gateways whose loops have ended takes no memory of this one."""
    process_memory.cache_clear()


def require_java() -> None:
    """Skip visibly where Java or Maven is missing; under CI=true fail instead."""
    missing = missing_tools()
    if not missing:
        return
    message = f"needs {' and '.join(missing)} on PATH"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def _server(version: str, folder: Path, secure: SecureListeners | None = None) -> Iterator[KafkaServer]:
    require_java()
    from tests.kafka_server import KafkaServer
    from tests.sasl_listeners import scram_users

    if secure is None:
        server = KafkaServer(version, folder)
        server.format()
    else:
        server = KafkaServer(version, folder, listeners=secure.listeners, system_properties=secure.system_properties)
        server.format(*scram_users())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def secure_listeners(tmp_path_factory: pytest.TempPathFactory) -> SecureListeners:
    """What `kafka` listens on beside PLAINTEXT, with the certificates that belong to it."""
    from tests.kafka_listeners import SecureListeners

    return SecureListeners(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, secure_listeners: SecureListeners) -> Iterator[KafkaServer]:
    """Apache Kafka 4.3.1, started once for all tests; use topic and group names of your own."""
    yield from _server(KAFKA_4, tmp_path_factory.mktemp("kafka4"), secure_listeners)


@pytest.fixture(scope="session")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Apache Kafka 3.9.1, which still takes the old versions and message formats."""
    yield from _server(KAFKA_3, tmp_path_factory.mktemp("kafka3"))


def _cluster(version: str, folder: Path) -> Iterator[KafkaCluster]:
    require_java()
    from tests.kafka_cluster import KafkaCluster

    cluster = KafkaCluster(version, folder)
    _clusters.append(cluster)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


_clusters: list[KafkaCluster] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """With `--dist loadgroup` all tests of three brokers follow one another: after them the brokers are in the way."""
    found = yield
    if _clusters and getattr(item.config.option, "loadgroup", False):
        from tests.kafka_cluster import ONE_CLUSTER

        if nextitem is None or ONE_CLUSTER.mark not in nextitem.iter_markers("xdist_group"):
            while _clusters:
                _clusters.pop().stop()
    return found


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of Apache Kafka 4.3.1, started once for all tests; who hurts one calls `heal` afterwards."""
    yield from _cluster(KAFKA_4, tmp_path_factory.mktemp("cluster4"))


@pytest.fixture(scope="session")
def cluster3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers of Apache Kafka 3.9.1."""
    yield from _cluster(KAFKA_3, tmp_path_factory.mktemp("cluster3"))


@pytest.fixture(scope="session")
def kafka_jars_4() -> Path:
    """The folder of Kafka 4.3.1's jars."""
    require_java()
    from tests.kafka_artifacts import kafka_jars

    return kafka_jars(KAFKA_4)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway on embedded HTP, a process of its own, started once for all tests."""
    from tests.gateway_process import GatewayProcess

    process = GatewayProcess(tmp_path_factory.mktemp("gateway") / "data")
    process.start()
    try:
        yield process.bootstrap
    finally:
        process.stop()


@pytest.fixture(scope="session", params=[pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("gateway")])
def broker(request: pytest.FixtureRequest) -> str:
    """The address of a real Kafka 4.3.1, then of the gateway: what our client does with one it does with the other."""
    if request.param == "kafka":
        server: KafkaServer = request.getfixturevalue("kafka")
        return server.bootstrap
    return str(request.getfixturevalue("gateway"))


@pytest.fixture
def kafka_python() -> Iterator[Any]:
    """kafka-python's package. Closed while it connects, it forgets that socket: a test with it ignores `unclosed`."""
    yield pytest.importorskip("kafka")
    gc.collect()  # or the next test would be told


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests themselves are millions of objects that stay: no collection need look at them every time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--trouble-minutes",
        type=float,
        default=20.0,
        help="how long gateways get into trouble under clients of all kinds",
    )
    parser.addoption("--kills", type=int, default=20, help="how often the test of kill -9 kills the gateway")
    parser.addoption("--mapping", default="domain", help="how topics of the gateway's tests lie in HTP")
    parser.addoption("--one-loop", action="store_true", help="run each test of both event loops on one, half on each")
    parser.addoption("--one-store", action="store_true", help="run each test with `url` over one store, half over each")
    parser.addoption(
        "--in-turn", action="store_true", help="run tests on each loop and each store, not on each pair; slow ones once"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    hand_in(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    collect(node.config, getattr(node, "workeroutput", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in summary(config):
        terminalreporter.write_line(line)


AGAIN = frozenset(
    {
        "two_levels", "brokers", "shared_topics", "a_plain_store", "a_vendors_store", "two_levels_of_a_vendor",
        "brokers_of_a_vendor", "shared_topics_of_a_vendor",
    }
)  # fmt: skip
"""Where tests of `tests/unit/gateway` run once more, by the names of their files: `test_gateway_on_NAME.py`."""


def _alike(file: re.Match[str]) -> str:
    return "again" if file[1] in AGAIN else file[0]


_LOOP = re.compile(r"(?<=[\[-])(asyncio|trio)(?=[\]-])")
_STORE = re.compile(r"(?<=[\[-])(memory|embedded)(?=[\]-])")
_PLACE = re.compile(r"(?<=^tests/unit/)gateway_\w+/test_gateway_on_(\w+)\.py")


def _in_turn(item: pytest.Item) -> bool:
    """Whether it is this pair's turn: of two loops and two stores two pairs run, that have all four in them."""
    name = item.nodeid
    loop = _LOOP.search(name)
    store = _STORE.search(name) if isinstance(item, pytest.Function) and "url" in item.fixturenames else None
    if loop is None or (store is None and not _PLACE.search(name)):
        return True
    alike = _LOOP.sub("", name if store is None else _STORE.sub("", name))
    other = zlib.crc32(alike.encode()) % 2 == 1
    return (loop[0] == "trio") != ((store is not None and store[0] == "embedded") != other)


def pytest_itemcollected(item: pytest.Item) -> None:
    """With `--dist loadgroup` a process takes whole files, unless they say otherwise."""
    if getattr(item.config.option, "loadgroup", False) and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Three brokers are shared, and stopped, by the group: nothing may come of tests that are dealt out one by one."""
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest-xdist does not keep the groups of tests together with this pytest")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--one-loop` and `--one-store` the names of tests decide where they run, so that it is always the same.

    So they do with `--in-turn`: tests that run once more over another mapping or store (`AGAIN`) have one loop each,
    and those that are `slow` run once.

    A store is chosen where it is only what a gateway lies over (the fixture `url`); tests of stores run over each. Of
    places where the same tests of the gateway run again (`AGAIN`), one is chosen. Three of four are over the store in
    memory: over an embedded one a test takes four times as long, and what that one does by itself has tests of its own.
    """
    one_loop, one_store = config.getoption("one_loop"), config.getoption("one_store")
    in_turn = config.getoption("in_turn")
    if in_turn:
        _keep(config, items, [item for item in items if _in_turn(item)])
    by_name: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid
        once = in_turn and item.get_closest_marker("slow") is not None
        if one_loop or once:
            name = _LOOP.sub("", name)
        if (one_store or once) and isinstance(item, pytest.Function) and "url" in item.fixturenames:
            name = _STORE.sub("", name)
        if one_store:
            name = _PLACE.sub(_alike, name)
        in_memory = (one_store or once) and re.search(r"[\[-]memory[\]-]", item.nodeid)
        by_name.setdefault(name, []).extend([item] * (3 if in_memory else 1))
    chosen = {id(alike[zlib.crc32(name.encode()) % len(alike)]) for name, alike in by_name.items()}
    _keep(config, items, [item for item in items if id(item) in chosen])


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    if len(kept) < len(items):
        left_out = {id(item) for item in items} - {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
        items[:] = kept
