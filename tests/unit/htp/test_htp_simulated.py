"""The simulated vendor's store: what it does to its clients, at one and the same moment for a seed, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kclient.errors import ConfigError, IllegalStateError, NotYetSupportedError
from kclient.htp import (
    BindingError,
    DomainExistsError,
    FencedError,
    OutcomeUnknownError,
    Place,
    PositionError,
    StorageError,
    StoreClosedError,
    Topic,
    UnknownDomainError,
    UnknownTopicError,
    open_store,
)
from kclient.htp.testing import SendFate, SimulatedOptions, SimulatedStore, open_simulated, reset
from tests.contract_run import run_contract
from tests.simulation.virtual_time import BACKENDS, run_virtually
from tests.unit.htp.plain_messages import FRAMING, message

NAME = "simulated-for-tests"
TOPIC = Topic("d", "t")


@pytest.fixture(params=BACKENDS)
def virtually(request: pytest.FixtureRequest) -> Any:
    """Runs a test on a store with options, in virtual time."""

    def run(test: Callable[[SimulatedStore], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            async with open_simulated(NAME, options=SimulatedOptions(**options)) as store:
                await store.manager.create_domain("d")
                await test(store)

        try:
            run_virtually(request.param, main)
        finally:
            reset(NAME)

    return run


async def opened(store: SimulatedStore, topic: Topic = TOPIC, broker: str = "brk-0") -> Any:
    place = (await store.manager.create_topic(topic, broker=broker)).place
    return await store.broker.open(place, FRAMING, epoch=1)


async def numbers(topic: Any, position: int = 0) -> list[int]:
    """The ordinals of all messages from a position on."""
    found: list[int] = []
    while (pulled := await topic.pull(position)).data:
        at = 0
        while at < len(pulled.data):
            info = FRAMING.inspect(pulled.data, at)
            found.append(info.first)
            at += info.length
        position = pulled.last + 1
    return found


def test_what_is_sent_is_there_in_order(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        assert store.broker.capabilities == frozenset()
        topic = await opened(store)
        for number in range(50):
            sent = await topic.send([message(number), message(number)])
            assert (sent.first, sent.last, sent.done) == (-1, -1, True)
            await sent.synced()
        assert await numbers(topic) == [each for number in range(50) for each in (number, number)]
        pulled = await topic.pull(0)
        assert len(pulled.data) == 20 * len(message(0)), "few at a time"
        status = await topic.status()
        assert status.end == status.next > 100, "positions have gaps"
        assert status.size == 100 * len(message(0))
        assert await topic.trim(pulled.last + 1) == pulled.last + 1
        assert await numbers(topic, pulled.last + 1) == [each for number in range(10, 50) for each in (number, number)]
        for outside in (pulled.last, status.end + 1):
            with pytest.raises(PositionError):
                await topic.pull(outside)
        for call in (topic.segments, topic.roll, lambda: topic.find_by_timestamp(0)):
            with pytest.raises(NotYetSupportedError, match="does not have the capability"):
                await call()
        with pytest.raises(ValueError, match="not one message"):
            await topic.send([message(1) + b"more"])

    virtually(test, latency_ms=20)


@pytest.mark.parametrize("fate", [SendFate.LOST, SendFate.UNANSWERED, SendFate.LATE])
def test_sends_that_are_not_answered(virtually: Any, fate: SendFate) -> None:
    async def test(store: SimulatedStore) -> None:
        topic = await opened(store)
        store.installation.fates.append(fate)
        began = anyio.current_time()
        with pytest.raises(OutcomeUnknownError, match="no answer within 2000 ms"):
            await topic.send([message(1)])
        assert anyio.current_time() - began == pytest.approx(2)
        await topic.send([message(2)])
        assert store.installation.on_its_way == (fate is SendFate.LATE)
        assert await numbers(topic) == ([1, 2] if fate is SendFate.UNANSWERED else [2])
        await anyio.sleep(5)
        assert await numbers(topic) == {SendFate.LOST: [2], SendFate.UNANSWERED: [1, 2], SendFate.LATE: [2, 1]}[fate]
        assert store.installation.met == [fate, SendFate.ANSWERED]

    virtually(test, timeout_ms=2000, late_ms=4000, latency_ms=1)


def test_answers_come_out_of_order_and_so_many_are_waited_for(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        answers: list[int] = []
        most = 0
        topics = [await opened(store, Topic("d", str(number))) for number in range(40)]
        waiting = 0

        async def send(number: int) -> None:
            nonlocal waiting
            await topics[number].send([message(number)])
            answers.append(number)

        async def watch() -> None:
            nonlocal most
            while len(answers) < 40:
                most = max(most, store.installation.on_its_way)
                await anyio.sleep(0.0005)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for number in range(40):
                tasks.start_soon(send, number)
        assert sorted(answers) == list(range(40))
        assert answers != sorted(answers)
        assert 2 <= most <= 5

    virtually(test, latency_ms=50, in_flight=5)


def test_a_topic_made_again_has_what_its_broker_has_not_dropped_yet(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        for pause, there in ((0.0, [1, 2]), (6.0, [])):
            topic = await opened(store)
            await topic.send([message(1), message(2)])
            await store.broker.delete([topic.place], epoch=1)
            with pytest.raises(UnknownTopicError):
                await topic.status()
            await store.manager.delete_topics([TOPIC])
            await anyio.sleep(pause)
            again = await opened(store)
            assert again.place == topic.place, "nothing tells them apart"
            assert await numbers(again) == there
            await store.manager.delete_topics([TOPIC])
            await anyio.sleep(6)
            with pytest.raises(UnknownTopicError):
                await again.send([message(3)])

    virtually(test)


def test_what_others_have_made_is_told_later(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        async with open_simulated(NAME) as other:
            await store.manager.create_topic(TOPIC)
            assert await store.manager.describe_topic(TOPIC)
            began, missed = anyio.current_time(), 0
            while True:
                try:
                    found = await other.manager.describe_topic(TOPIC)
                except UnknownTopicError:
                    missed += 1
                    await anyio.sleep(0.1)
                else:
                    break
            assert missed
            assert anyio.current_time() - began <= 5
            assert found.incarnation == 0
            for _ in range(50):
                assert [each.topic for each in await other.manager.list_topics("d")] == [TOPIC], "it forgets nothing"
            await store.manager.delete_domain("d")
            with pytest.raises(UnknownDomainError):
                await store.manager.list_topics("d")
            await anyio.sleep(5)
            with pytest.raises(UnknownDomainError):
                await other.manager.list_topics("d")

    virtually(test, seed=3)


def test_several_brokers(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        assert await store.manager.brokers() == ["brk-0", "brk-1", "brk-2"]
        one = await opened(store, broker="brk-1")
        with pytest.raises(UnknownTopicError):
            await store.broker.open(Place(TOPIC, "brk-0", 0), FRAMING, epoch=1)
        two = await store.broker.open(await store.manager.bind(TOPIC, "brk-0"), FRAMING, epoch=1)
        for number, topic in enumerate((one, two)):
            await topic.send([message(number)])
        assert [await numbers(topic) for topic in (one, two)] == [[0], [1]]
        with pytest.raises(BindingError, match="brk-3"):
            await store.manager.create_topic(Topic("d", "other"), broker="brk-3")

    virtually(test, brokers=3)


def test_values_and_leases_are_consistent(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        async with open_simulated(NAME) as other:
            lease = await store.manager.acquire("lease", "one", 10)
            await store.manager.commit({"key": b"1"}, {"key": 0}, lease=lease)
            assert (await other.manager.get(["key"]))["key"].value == b"1"
            taken = await other.manager.acquire("lease", "one", 10)
            for call in (store.manager.commit({}, lease=lease), store.manager.delete_topics([TOPIC], lease=lease)):
                with pytest.raises(FencedError):
                    await call
            store.manager.reachable = False
            with pytest.raises(StorageError, match="cannot be reached"):
                await store.manager.get(["key"])
            await other.manager.release(taken)

    virtually(test, latency_ms=5)


def test_reads_that_are_not_answered_are_asked_again(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        with pytest.raises(StorageError, match="no answer, 3 times, within 1000 ms"):
            await opened(store)
        assert anyio.current_time() >= 3

    virtually(test, silent_reads=1, timeout_ms=1000)


def test_a_store_that_was_closed(virtually: Any) -> None:
    async def test(store: SimulatedStore) -> None:
        async with open_simulated(NAME) as other:
            await store.manager.create_topic(TOPIC, broker="brk-0")
            topic = await other.broker.open(Place(TOPIC, "brk-0", 0), FRAMING, epoch=1)
            broker, manager = other.broker, other.manager
        for call in (topic.status(), topic.send([message(1)]), manager.get(["key"]), broker.delete([], epoch=1)):
            with pytest.raises(StoreClosedError):
                await call
        with pytest.raises(StoreClosedError, match="is not open"):
            _ = other.manager

    virtually(test)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_it_keeps_the_contract_but_for_what_it_cannot_know(loop: str, tmp_path: Path) -> None:
    """Where all is told at once. Who has a topic open is told by nobody that somebody else has deleted it."""
    chosen = f"{loop} and not test_what_one_deletes_the_other_has_no_more"
    done = run_contract("simulated:store?brokers=3&stale_ms=0", tmp_path, "-k", chosen)
    assert done.code == 0, done.output


def test_options_that_make_no_sense() -> None:
    for address, complaint in {
        "brokers=0": "brokers is 1 at least",
        "silent=2": "a share from 0 to 1",
        "latency_ms=inf": "a number from 0 on",
        "speed=1": "there are brokers, seed",
        "seed=x": "takes a number",
        "seed": "NAME=VALUE",
    }.items():
        with pytest.raises(ConfigError, match=complaint):
            open_store(f"simulated:x?{address}")
    with pytest.raises(ConfigError, match="not by both"):
        open_store("simulated:x?seed=1", options=SimulatedOptions())
    with pytest.raises(ConfigError, match="durability is"):
        open_store("simulated:x", durability="always")


def test_an_installation_belongs_to_one_loop_at_a_time_and_has_one_description() -> None:
    async def first() -> None:
        async with open_store(f"simulated:{NAME}?seed=1"):
            async with open_store(f"simulated:{NAME}") as store:
                await store.manager.create_domain("d")
            with pytest.raises(ConfigError, match="was made with"):
                async with open_store(f"simulated:{NAME}?seed=2"):
                    pass

            await anyio.to_thread.run_sync(anyio.run, elsewhere)

    async def elsewhere() -> None:
        with pytest.raises(IllegalStateError, match="in another event loop"):
            async with open_store(f"simulated:{NAME}"):
                pass

    async def later() -> None:
        async with open_store(f"simulated:{NAME}") as store:
            with pytest.raises(DomainExistsError):
                await store.manager.create_domain("d")

    try:
        anyio.run(first)
        for backend in ("asyncio", "trio"):
            anyio.run(later, backend=backend)
    finally:
        reset(NAME)
