"""What has a store fail: offered where it was asked for, and each backend says which faults it cannot have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.htp import PositionError, StorageError, Store, UnknownTopicError, memory, open_store
from kclient.htp.embedded.files import Files
from kclient.htp.port import (
    FAULT_DAMAGE,
    FAULT_FULL,
    FAULT_SYNC,
    FAULT_UNKNOWN,
    FAULT_WRITE,
    Faults,
    OpenTopic,
    Place,
    faults_of,
)
from tests.unit.htp.plain_messages import FRAMING, TOPIC, message, payloads

pytestmark = pytest.mark.anyio


def of(store: Store) -> Faults:
    faults = faults_of(store)
    assert faults is not None
    return faults


async def filled(store: Store) -> OpenTopic:
    """A topic with four messages of one ordinal, in two segments."""
    await store.manager.create_domain(TOPIC.domain)
    place = (await store.manager.create_topic(TOPIC)).place
    topic = await store.broker.open(place, FRAMING, epoch=1)
    for number in range(4):
        await (await topic.send([message(number, b"%d" % number)])).synced()
        if number == 1:
            await topic.roll()
    return topic


async def test_nothing_fails_unless_that_was_asked_for(store_url: str) -> None:
    for options in ({}, {"faults": False}):
        async with open_store(store_url, **options) as store:
            assert faults_of(store) is None
            anything: Any = store
            with pytest.raises(AttributeError, match="made with faults=True"):
                _ = anything.faults


@pytest.mark.parametrize("backend", ["memory", "embedded"], indirect=True)
async def test_faults_that_a_backend_cannot_have(backend: str, store_url: str) -> None:
    kinds = {
        "memory": {FAULT_WRITE, FAULT_FULL, FAULT_UNKNOWN},
        "embedded": {FAULT_WRITE, FAULT_FULL, FAULT_SYNC, FAULT_DAMAGE},
    }
    async with open_store(store_url, faults=True) as store:
        topic, faults = await filled(store), of(store)
        assert faults.kinds == kinds[backend]
        if backend == "embedded":
            with pytest.raises(NotImplementedError, match="never loses an answer"):
                faults.lose_answer()
            return
        with pytest.raises(NotImplementedError, match="needs no sync"):
            faults.fail_sync()
        with pytest.raises(NotImplementedError, match="cannot be damaged"):
            await faults.damage(topic.place, 1)


async def test_what_was_to_fail_does_not_once_that_was_taken_back(store_url: str) -> None:
    async with open_store(store_url, faults=True) as store:
        topic, faults = await filled(store), of(store)
        faults.fail_write()
        faults.fill(1)
        faults.clear()
        await (await topic.send([message(4, b"4")])).synced()
        faults.fail_write()
        with pytest.raises(StorageError):
            await topic.send([message(5, b"lost")])
        await (await topic.send([message(5, b"5")])).synced()


async def test_an_opening_of_a_name_in_memory_fails_alone() -> None:
    async with open_store("memory:two", faults=True) as faulty, open_store("memory:two") as other:
        topic = await filled(faulty)
        of(faulty).fail_write()
        mine = await other.broker.open(topic.place, FRAMING, epoch=1)
        await mine.send([message(4, b"4")])
        with pytest.raises(StorageError):
            await topic.send([message(5, b"5")])
    memory.reset("two")


@pytest.mark.parametrize("backend", ["embedded"], indirect=True)
async def test_only_a_message_that_is_there_is_damaged(store_url: str) -> None:
    async with open_store(store_url, faults=True) as store:
        topic, faults = await filled(store), of(store)
        for position in (-1, 4, 100):
            with pytest.raises(PositionError):
                await faults.damage(topic.place, position)
        for place in (topic.place._replace(incarnation=7), Place(TOPIC, "brk-9", topic.place.incarnation)):
            with pytest.raises(UnknownTopicError, match="is not open"):
                await faults.damage(place, 1)
        await faults.damage(topic.place, 3)
        found = [payloads((await topic.pull(position, max_messages=1)).data) for position in range(3)]
        assert found == [[b"0"], [b"1"], [b"2"]]


def test_faults_stand_in_for_the_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give faults or files"):
        open_store(f"embedded:{tmp_path}", faults=True, files=Files())
