"""A framing has a name: it is found by it in any process, and a topic is opened with the one it was written with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import anyio
import pytest

from kclient import registry
from kclient.gateway.extents.encoding import BARE, Enveloped
from kclient.htp import (
    FencedError,
    FramingMismatchError,
    Store,
    UnknownFramingError,
    find_framing,
    framings,
    open_store,
    register_framing,
)
from kclient.htp.rows import seal, unsealed
from kclient.records import BatchBuilder, RecordBatchFraming
from tests.unit.htp.plain_messages import FRAMING, TOPIC, PlainFraming, message, payloads

pytestmark = pytest.mark.anyio


class OtherFraming(PlainFraming):
    name = "tests.other"


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framings, "_framings", dict(registry.framings))


def batch() -> bytes:
    builder = BatchBuilder(limit=1 << 20)
    builder.append(1000, b"key", b"value")
    return bytes(builder.build(base_offset=7))


def test_those_of_the_package_read_what_theirs_read() -> None:
    for encoding in (BARE, Enveloped(bytes(16), 3, 1)):
        found = find_framing(encoding.framing.name)
        stored = encoding.wrap(batch())
        assert found.measure(stored) == len(stored)
        assert found.verify(stored)
        assert found.inspect(stored) == encoding.framing.inspect(stored)
        assert not found.verify(bytes(stored)[:-1])


@pytest.mark.slow
def test_another_process_is_given_the_name_alone() -> None:
    """And imports what frames, nothing before it is asked for."""
    code = (
        "import sys; import kclient.htp; before = 'kclient.records' in sys.modules;"
        "message = sys.stdin.buffer.read(); found = kclient.htp.find_framing(sys.argv[1]);"
        "print(before, found.verify(message), found.measure(message))"
    )
    for encoding in (BARE, Enveloped(bytes(16), 3, 1)):
        stored = bytes(encoding.wrap(batch()))
        told = subprocess.run(
            [sys.executable, "-c", code, encoding.framing.name], input=stored, capture_output=True, check=True
        )
        assert told.stdout.split() == [b"False", b"True", b"%d" % len(stored)], told.stderr.decode()


def test_others_register_theirs() -> None:
    register_framing("tests.plain", PlainFraming)
    assert find_framing("tests.plain").verify(message(7, b"a"))
    register_framing("tests.plain", "tests.unit.htp.plain_messages:PlainFraming")
    assert find_framing("tests.plain").inspect(message(7, b"a")).first == 7


def test_an_entry_point_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    there = EntryPoint("tests.plain", "tests.unit.htp.plain_messages:PlainFraming", framings.ENTRY_POINTS)

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [there] if group == framings.ENTRY_POINTS and name in (None, there.name) else []

    monkeypatch.setattr(framings, "entry_points", entry_points)
    assert find_framing("tests.plain").prefix == FRAMING.prefix
    with pytest.raises(UnknownFramingError, match=r"'tests\.none'; there are kafka.*, tests\.plain\. "):
        find_framing("tests.none")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("no.such.module:Framing", "cannot be used: No module named 'no'"),
        ("tests.unit.htp.plain_messages:NoFraming", "cannot be used: .*NoFraming"),
        (OtherFraming, r"registered as 'tests\.wrong' is the framing 'tests\.other'"),
    ],
)
def test_what_is_registered_wrongly_is_told(make: Any, why: str) -> None:
    register_framing("tests.wrong", make)
    with pytest.raises(UnknownFramingError, match=why):
        find_framing("tests.wrong")


def test_an_unknown_name_says_what_to_do() -> None:
    with pytest.raises(UnknownFramingError) as info:
        find_framing("vendor.messages.v9")
    text = str(info.value)
    assert "no framing has the name 'vendor.messages.v9'" in text
    assert RecordBatchFraming.name in text
    assert "kclient.htp.framings" in text
    assert "install that, or call kclient.htp.register_framing" in text


@pytest.fixture
def again(store_url: str) -> Callable[[], Store]:
    return lambda: open_store(store_url)


async def test_a_topic_is_opened_with_the_framing_it_was_written_with(again: Callable[[], Store]) -> None:
    async with again() as store:
        await store.manager.create_domain(TOPIC.domain)
        place = (await store.manager.create_topic(TOPIC)).place
        topic = await store.broker.open(place, FRAMING, epoch=1)
        await (await topic.send([message(0, b"a")])).synced()
    for epoch in (1, 5):
        async with again() as store:
            for _ in range(2):
                with pytest.raises(FramingMismatchError, match=r"'tests\.plain', and cannot .* 'tests\.other'") as info:
                    await store.broker.open(place, OtherFraming(), epoch=epoch)
                assert (info.value.written, info.value.given) == ("tests.plain", "tests.other")
            topic = await store.broker.open(place, PlainFraming(), epoch=1)
            assert payloads((await topic.pull(0)).data) == [b"a"], "nothing was sealed by who was refused"
            with pytest.raises(FramingMismatchError):
                await store.broker.open(place, OtherFraming(), epoch=epoch)
            assert payloads((await topic.pull(0)).data) == [b"a"]
    async with again() as store:
        await store.broker.open(place, FRAMING, epoch=9)
        with pytest.raises(FencedError):
            await store.broker.open(place, OtherFraming(), epoch=5)
        await store.broker.delete([place], epoch=9)
        await store.manager.delete_topics([TOPIC])
        made_anew = (await store.manager.create_topic(TOPIC)).place
        await store.broker.open(made_anew, OtherFraming(), epoch=9)


async def test_what_was_written_before_there_were_names_is_opened_with_any(tmp_path: Any) -> None:
    """And keeps the name of the one that comes first."""
    url = f"embedded:{tmp_path / 'data'}"
    async with open_store(url) as store:
        await store.manager.create_domain(TOPIC.domain)
        place = (await store.manager.create_topic(TOPIC)).place
        topic = await store.broker.open(place, FRAMING, epoch=1)
        await (await topic.send([message(0, b"a")])).synced()
    async with open_store(url) as store:
        (key, row), *others = (await store.manager.scan("brk/", limit=9)).items()
        assert not others
        fields = json.loads(unsealed(row.value))
        assert fields.pop("framing") == "tests.plain"
        await store.manager.commit({key: seal(json.dumps(fields).encode())})
    async with open_store(url) as store:
        topic = await store.broker.open(place, OtherFraming(), epoch=1)
        assert payloads((await topic.pull(0)).data) == [b"a"]
        await (await topic.send([message(1, b"b")])).synced()
        await topic.close()
        with anyio.fail_after(10), pytest.raises(FramingMismatchError):
            await store.broker.open(place, FRAMING, epoch=1)
