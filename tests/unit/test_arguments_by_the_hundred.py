"""Each public call of the clients with arguments of every kind: it refuses them at once, in one sentence, or works; and
the client lives on."""

from __future__ import annotations

import inspect
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.from_thread
import pyarrow.compute  # noqa: F401 - now: from a cold disk it takes longer than the call that imports it may
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import kclient
import kclient.sync
from kclient import serialization
from kclient.arguments import shown
from kclient.config import AdminConfig, ConsumerConfig, ProducerConfig
from kclient.errors import KafkaError, KafkaTimeoutError, WakeupError
from kclient.testing import memory_broker
from tests.example_budget import examples
from tests.hostile_values import OfTheUsers, Shown, odd
from tests.unit.arguments_of_clients import (
    CLIENTS,
    LEFT_OUT,
    NEARLY,
    OVERRIDES,
    RIGHT,
    TOPICS,
    Call,
    calls,
    nearly_timeout,
    parameters,
    public_calls,
)

pytestmark = [
    # the clients' threads draw random numbers while hypothesis makes arguments
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
    # what Python itself says where one of the arguments is taken for true or false; from 3.14 on it is a TypeError
    pytest.mark.filterwarnings("ignore:NotImplemented should not be used in a boolean context:DeprecationWarning"),
]

HASTY: dict[str, Any] = {
    "default_api_timeout_ms": 300,
    "request_timeout_ms": 200,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
}
OF_PRODUCERS: dict[str, Any] = {
    "request_timeout_ms": 200,
    "max_block_ms": 200,
    "delivery_timeout_ms": 3000,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
}
LIMIT = 6.0
"""Seconds that a call may take; what it waits for is over in 0.3."""
AT_ONCE = 3.0
"""Seconds within which a wrong argument is refused: a busy machine's idea of no time."""
INTERNALS = re.compile(
    r"has no attribute|cannot unpack|struct\.|out of bounds|integer is required|cannot be interpreted|"
    r"not subscriptable|not iterable|has no len|bytes-like|C (int|long)|too large to convert|positional arg|"
    r"codec can't|unhashable|"
    r"index out of range|Exceeds the limit|issubclass|unsupported operand|not supported between|expected str inst|"
    r"arg(ument)?( \d+)? must be|unexpected keyword|object is not|isinstance\(\)|invalid literal|could not convert"
)
"""What Python says of its own affairs, in errors of its own kinds."""


def judge(call: str, error: BaseException | None, seconds: float) -> None:
    """What became of a call is one of the things that may."""
    assert seconds < LIMIT, f"{call} took {seconds:.1f} s and ended with {error!r}"
    if error is None or isinstance(error, OfTheUsers) or isinstance(error.__cause__, OfTheUsers):
        return
    if not isinstance(error, KafkaError) and type(error) not in (TypeError, ValueError):
        raise AssertionError(f"{call} raised {type(error).__name__}") from error
    text = str(error)
    pythons = not isinstance(error, KafkaError) and INTERNALS.search(text)
    if pythons or len(text) > 1500 or not text:
        raise AssertionError(f"{call} said {text[:500]}") from error
    if not isinstance(error, KafkaTimeoutError):
        assert seconds < AT_ONCE, f"{call} took {seconds:.1f} s to refuse with {error!r}"


# ------------------------------------------------------------------ the clients, alive


class Face:
    """One client, with which calls are made until it does not answer any more."""

    def __init__(self, kind: str, address: str, run: Callable[..., Any]) -> None:
        self.kind = CLIENTS[kind]
        self.is_async = not kind.startswith("kclient.sync")
        self.name = kind.rsplit(".", 1)[-1]
        self._address = address
        self._run = run
        self._last = ""
        """The method that was called last."""
        self.feed: Callable[[], object] = lambda: None
        """Sends a record."""
        self.client: Any = self._made()

    def _made(self) -> Any:
        own = OF_PRODUCERS if self.name == "Producer" else dict(HASTY)
        if self.name == "Consumer":
            own |= {"group_id": "g", "auto_offset_reset": "earliest", "fetch_max_wait_ms": 20}
        if self.name == "ShareConsumer":
            own |= {"group_id": "g", "fetch_max_wait_ms": 20}
        client = self.kind(bootstrap_servers=self._address, **own)
        if self.is_async:
            self._run(client.start)
        return client

    def call(self, call: Call) -> None:
        """Make a call, whatever becomes of it."""
        started = time.monotonic()
        self._last = call.method
        error: BaseException | None = None
        try:
            self.do(getattr(self.client, call.method), **call.given)
        except Exception as raised:
            error = raised
        judge(f"{self.kind.__module__}.{self.name}: {call!r}", error, time.monotonic() - started)

    def do(self, function: Any, **given: Any) -> Any:
        """Call, in the loop where it has to be."""
        return self._run(self._in_loop, function, given) if self.is_async else function(**given)

    @staticmethod
    async def _in_loop(function: Any, given: dict[str, Any]) -> Any:
        result = function(**given)
        return await result if inspect.isawaitable(result) else result

    def check(self) -> None:
        """A good call works."""
        started = time.monotonic()
        getattr(self, f"_check_{self.name.lower()}")()
        assert time.monotonic() - started < 10

    def _check_producer(self) -> None:
        try:
            self.do(self.client.flush, timeout=5)
        except KafkaError:  # what could be sent by its form, and by nothing else
            self.do(self.client.flush, timeout=5)
        self.do(self.client.send, topic="t", value=b"v", partition=0)
        self.do(self.client.flush, timeout=5)

    def _check_admin(self) -> None:
        found = {listed.name for listed in self.do(self.client.list_topics, timeout=5)}
        if self._last == "delete_topics":  # an iterator may well have named them
            for topic in set(TOPICS) - found:
                self.do(self.client.create_topic, name=topic, partitions=2)
        else:
            assert found >= set(TOPICS)

    def _check_consumer(self) -> None:
        client = self.client
        while True:
            try:
                self.do(client.commit, offsets={})
            except Exception:
                continue  # a callback that was given raises when it is called
            try:
                self.do(client.unsubscribe)
                self.do(client.assign, partitions=[("t", 0)])
                self.do(client.seek, partition=("t", 0), offset=0)
                deadline = time.monotonic() + 5
                while not self.do(client.poll, timeout=0.5):
                    assert time.monotonic() < deadline
            except WakeupError:
                continue
            return

    def _check_shareconsumer(self) -> None:
        deadline = time.monotonic() + 8
        while True:
            self.feed()
            try:
                self.do(self.client.subscribe, topics=["t"])
                if self.do(self.client.poll, timeout=0.5):
                    return
            except WakeupError:
                continue
            except Exception:
                if time.monotonic() > deadline:
                    raise
                continue  # a callback that was given raises when it is called
            assert time.monotonic() < deadline

    def close(self) -> None:
        """At once, whatever it went through."""
        started = time.monotonic()
        try:
            self.do(self.client.close, timeout=0.5)
        except KafkaError as error:  # a producer says what it could not send
            judge("close", error, 0)
        assert time.monotonic() - started < LIMIT


@contextmanager
def faces(kind: str) -> Iterator[Face]:
    with memory_broker() as address, anyio.from_thread.start_blocking_portal() as portal:
        with kclient.sync.Admin(bootstrap_servers=address) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, partitions=2)
        with kclient.sync.Producer(bootstrap_servers=address) as producer:
            producer.send_batch("t", [b"v"] * 5, partition=0)
            face = Face(kind, address, portal.call)
            face.feed = lambda: producer.send("t", b"v", partition=0).result(5)
            try:
                yield face
            finally:
                face.close()


@contextmanager
def closing_face(kind: str) -> Iterator[Face]:
    """A client whose closing is what is tested."""
    with anyio.from_thread.start_blocking_portal() as portal:
        face = Face(kind, "memory:closing", portal.call)
        try:
            yield face
        finally:
            started = time.monotonic()
            face.do(face.client.close)
            assert time.monotonic() - started < AT_ONCE


# ------------------------------------------------------------------ tests


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_public_call_has_arguments(kind: str) -> None:
    """A new method, or a new parameter, needs strategies."""
    client = CLIENTS[kind]
    for method in public_calls(client):
        if method not in LEFT_OUT:
            for name in parameters(client, method):
                assert name in RIGHT or (method, name) in OVERRIDES, f"{kind}.{method}: {name}"
    for method, name in OVERRIDES:
        assert any(name in parameters(other, method) for other in CLIENTS.values() if method in public_calls(other)), (
            f"there is no {method}({name})"
        )
    used = {name for other in CLIENTS.values() for method in public_calls(other) for name in parameters(other, method)}
    assert used >= RIGHT.keys() | NEARLY.keys()


def by_the_hundred(kind: str, count: int) -> None:
    with faces(kind) as face:

        @settings(examples(count), suppress_health_check=list(HealthCheck))
        @given(calls(CLIENTS[kind]))
        def one(call: Call) -> None:
            face.call(call)
            face.check()

        one()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", CLIENTS)
def test_calls(kind: str) -> None:
    by_the_hundred(kind, 100 if kind.endswith("ShareConsumer") else 300)  # whose checks wait for a fetch each


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", CLIENTS)
def test_many_calls(kind: str) -> None:
    by_the_hundred(kind, 20_000)


# ------------------------------------------------------------------ what is not a call of a client


def attempt(call: str, function: Callable[[], Any]) -> None:
    """Call, and judge what became of it."""
    started = time.monotonic()
    error: Exception | None = None
    try:
        function()
    except Exception as raised:
        error = raised
    judge(call, error, time.monotonic() - started)


CONFIGS: dict[type, Any] = {
    kclient.sync.Admin: AdminConfig,
    kclient.sync.Consumer: ConsumerConfig,
    kclient.sync.Producer: ProducerConfig,
}
BLOCKING = st.sampled_from(list(CONFIGS))
settings_of_clients = BLOCKING.flatmap(
    lambda client: st.tuples(
        st.just(client), st.sampled_from([s.attribute for s in CONFIGS[client].settings().values()])
    )
)
SERIALIZERS = [
    kind
    for name in serialization.__all__
    if isinstance(kind := getattr(serialization, name), type) and not getattr(kind, "_is_protocol", False)
]


def with_a_setting(of: tuple[type, str], value: Any) -> None:
    client, name = of
    given = {"bootstrap_servers": "memory:unused", name: value}
    attempt(f"{client.__name__}({name}={shown(value)})", lambda: client(**given).close())


def with_a_configuration(client: type, value: Any) -> None:
    attempt(f"{client.__name__}({shown(value)})", lambda: client(value))


def with_a_serializer(kind: type, value: Any) -> None:
    method = "deserialize" if hasattr(kind, "deserialize") else "serialize"
    attempt(f"{kind.__name__}.{method}({shown(value)})", lambda: getattr(kind(), method)("t", value, ()))
    for name in inspect.signature(kind).parameters:
        attempt(f"{kind.__name__}({name}={shown(value)})", lambda name=name: kind(**{name: value}))


def with_a_gateway(of: tuple[type, str], value: Any) -> None:
    gateway, name = of
    given = {"htp": "memory:unused", "listen": None, name: value}
    attempt(f"{gateway.__name__}({name}={shown(value)})", lambda: gateway(**given))


def naming_a_serializer(resolve: Callable[..., Any], value: Any) -> None:
    attempt(f"{resolve.__name__}({shown(value)})", lambda: resolve(value, "key.serializer"))


OTHERS: dict[str, tuple[Callable[[Any, Any], None], st.SearchStrategy[Any]]] = {
    "settings": (with_a_setting, settings_of_clients),
    "configurations": (with_a_configuration, st.sampled_from([*CONFIGS, *CLIENTS.values()])),
    "serializers": (with_a_serializer, st.sampled_from(SERIALIZERS)),
    "gateways": (
        with_a_gateway,
        st.tuples(
            st.sampled_from([kclient.Gateway, kclient.sync.Gateway]),
            st.sampled_from(list(inspect.signature(kclient.Gateway).parameters)),
        ),
    ),
    "names of serializers": (
        naming_a_serializer,
        st.sampled_from([serialization.resolve_serializer, serialization.resolve_deserializer]),
    ),
}


def others_by_the_hundred(what: str, count: int) -> None:
    function, strategy = OTHERS[what]

    @settings(examples(count), suppress_health_check=list(HealthCheck))
    @given(strategy, odd.map(Shown))
    def one(subject: Any, value: Shown) -> None:
        function(subject, value.value)

    one()


@pytest.mark.parametrize("what", OTHERS)
def test_others(what: str) -> None:
    others_by_the_hundred(what, 500)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("what", OTHERS)
def test_many_others(what: str) -> None:
    others_by_the_hundred(what, 50_000)


@pytest.mark.parametrize("kind", CLIENTS)
@settings(examples(40), suppress_health_check=list(HealthCheck))
@given(value=(nearly_timeout | odd.filter(lambda value: not isinstance(value, int | float))).map(Shown))
def test_closing(kind: str, value: Shown) -> None:
    """A close with a wrong timeout is none, and the next one ends within a second."""
    with closing_face(kind) as face:
        attempt(f"{kind}.close({shown(value.value)})", lambda: face.do(face.client.close, timeout=value.value))


@settings(examples(100), suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["listen", "close", "reload", "serve_health", "serve_metrics"]),
    st.sampled_from(["address", "advertise"]),
    odd.filter(lambda value: not isinstance(value, int | float)).map(Shown),
)
@example("listen", "address", Shown("é" * 20_000))
@example("serve_metrics", "address", Shown("é" * 20_000))
def test_a_running_gateway(method: str, name: str, value: Shown) -> None:
    with kclient.sync.Gateway(f"memory:{uuid.uuid4().hex}", None) as gateway:
        if method == "listen":
            given = {"address": "127.0.0.1:0", name: value.value}
            attempt(f"listen({name}={value!r})", lambda: gateway.listen(**given))
        else:
            attempt(f"{method}({value!r})", lambda: getattr(gateway, method)(value.value))
            assert gateway.failure is None


def test_every_call_of_a_gateway_is_tried() -> None:
    taking = {method for method in public_calls(kclient.sync.Gateway) if parameters(kclient.sync.Gateway, method)}
    assert taking == {"close", "listen", "reload", "serve_health", "serve_metrics"}
