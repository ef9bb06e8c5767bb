"""Any sequence of calls does to a store what it does to a simple model of it (hypothesis)."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, TypeVar

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kclient.htp import ConflictError, PositionError, TopicSettings, memory
from tests.example_budget import examples
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.plain_messages import FRAMING, TOPIC, message, split

T = TypeVar("T")

LAYOUT = TopicSettings(segment_bytes=300, index_interval_bytes=64)
KEYS = st.sampled_from(["a", "b", "c/1", "c/2"])


class StoreMachine(RuleBasedStateMachine):
    """The model: a list of messages, a start that is known roughly, and a dict of values."""

    backend: ClassVar[str]
    loop: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.url = f"embedded:{folder}/data" if self.backend == "embedded" else "memory:model"
        memory.reset("model")
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal(self.loop))
        self.messages: list[tuple[int, int, bytes]] = []
        self.stamps: list[int] = []
        self.next = 0
        self.trimmed = 0
        self.values: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.open()
        self.run(self.store.manager.create_domain, TOPIC.domain)
        self.run(self.store.manager.create_topic, TOPIC)
        self.run(self.open_topic)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return self.portal.call(function, *args)

    def open(self) -> None:
        self.store: NamedStore = named_store(self.url, settings=LAYOUT)
        self.run(self.store.__aenter__)

    async def open_topic(self) -> None:
        assert (await self.store.broker.open(TOPIC, FRAMING)).next == self.next

    def teardown(self) -> None:
        try:
            self.run(self.store.aclose)
        finally:
            self.stack.close()

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=5), gap=st.integers(0, 2), stamp=st.integers(0, 50))
    def send(self, sizes: list[int], gap: int, stamp: int) -> None:
        sent = []
        for size in sizes:
            payload = bytes([self.next % 256]) * size
            count = 1 + size % 3
            first = self.next + gap
            sent.append(message(first, payload, count=count, timestamp=stamp + size))
            self.messages.append((first, first + count - 1, payload))
            self.stamps.append(stamp + size)
            self.next = first + count

        async def sending() -> None:
            await (await self.store.broker.send(TOPIC, sent)).synced()

        self.run(sending)

    @rule(position=st.integers(0, 60), max_bytes=st.integers(1, 2000), direct=st.booleans())
    def pull(self, position: int, max_bytes: int, direct: bool) -> None:
        broker = self.store.broker
        start = self.run(broker.start, TOPIC)

        async def pulling() -> Any:
            if direct:
                pulled = broker.pull_nowait(TOPIC, position, max_bytes=max_bytes)
                if pulled is not None:
                    return pulled
            return await broker.pull(TOPIC, position, max_bytes=max_bytes)

        if not start <= position <= self.next:
            with pytest.raises(PositionError):
                self.run(pulling)
            return
        pulled = self.run(pulling)
        found = split(pulled.data)
        expected = [each for each in self.messages if each[1] >= position]
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        if found:
            assert (pulled.first, pulled.last) == (found[0][0], found[-1][1])
            assert len(found) == 1 or len(pulled.data) <= max_bytes

    @rule(timestamp=st.integers(0, 300), start=st.integers(0, 60))
    def find(self, timestamp: int, start: int) -> None:
        begin = max(start, self.run(self.store.broker.start, TOPIC))

        async def finding() -> Any:
            return await self.store.broker.find_by_timestamp(TOPIC, timestamp, start=start)

        found = self.run(finding)
        expected = [
            (first, last, stamp)
            for (first, last, _), stamp in zip(self.messages, self.stamps, strict=True)
            if stamp >= timestamp and last >= begin
        ]
        assert found == (expected[0] if expected else None)

    @rule(before=st.integers(0, 80))
    def trim(self, before: int) -> None:
        start = self.run(self.store.broker.trim, TOPIC, before)
        self.trimmed = max(self.trimmed, min(before, self.next))
        assert start <= self.trimmed

    @rule()
    def roll(self) -> None:
        self.run(self.store.broker.roll, TOPIC)

    @rule()
    def reopen_topic(self) -> None:
        self.run(self.store.broker.close, TOPIC)
        self.run(self.open_topic)

    @rule()
    def reopen(self) -> None:
        self.run(self.store.aclose)
        self.open()
        self.run(self.open_topic)

    @rule(
        writes=st.dictionaries(KEYS, st.none() | st.binary(max_size=5), max_size=3),
        right=st.sets(KEYS, max_size=3),
        wrong=st.sets(KEYS, max_size=1),
    )
    def commit(self, writes: dict[str, bytes | None], right: set[str], wrong: set[str]) -> None:
        expect = {key: self.values[key][1] if key in self.values else 0 for key in right}
        expect |= dict.fromkeys(wrong, 10**9)
        if wrong:
            with pytest.raises(ConflictError) as info:
                self.run(self.store.manager.commit, writes, expect)
            assert info.value.key in wrong
            return
        revision = self.run(self.store.manager.commit, writes, expect)
        assert revision > self.revision
        self.revision = revision
        for key, value in writes.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = (value, revision)

    @invariant()
    def all_values_are_there(self) -> None:
        found = self.run(partial(self.store.manager.scan, "", limit=10_000))
        assert {key: each for key, each in found.items() if not key.startswith("brk/")} == self.values

    @invariant()
    def the_ends_are_right(self) -> None:
        status = self.run(self.store.broker.status, TOPIC)
        assert (status.end, status.next) == (self.next, self.next)
        kept = [each for each in self.messages if each[0] >= status.start]
        assert all(each in kept for each in self.messages if each[1] >= self.trimmed)
        segments = self.run(self.store.broker.segments, TOPIC)
        assert [each.active for each in segments] == [False] * (len(segments) - 1) + [True]
        assert segments[0].first == status.start
        assert segments[-1].next == status.next
        assert sum(each.size for each in segments) == status.size


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_the_store_does_what_the_model_does(backend: str, loop: str) -> None:
    machine = type("Machine", (StoreMachine,), {"backend": backend, "loop": loop})
    test = machine.TestCase  # type: ignore[attr-defined]
    test.settings = examples(8 if backend == "embedded" else 20, stateful_step_count=30)
    test().runTest()
