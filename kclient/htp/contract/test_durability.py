"""What is stored is there when the store is opened again, however it was left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kclient.htp.contract.killed import EPOCH
from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import FencedError
from kclient.htp.port import CAP_DURABLE, CAP_FENCED_SENDS, DURABILITY_SYNCED, DURABILITY_WRITTEN

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("durability")]


async def test_what_was_sent_is_there_when_opened_again(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    contents: list[bytes] = []
    for number in range(4):
        topic = await sandbox.open(place, epoch=number // 2)
        await sandbox.send(topic, b"%d" % number, bytes([number]) * 10_000)
        contents += [b"%d" % number, bytes([number]) * 10_000]
        before = await topic.status()
        await sandbox.reopen()
        topic = await sandbox.open(place, epoch=number // 2)
        assert await topic.status() == before
        assert await sandbox.content(topic) == contents


async def test_closing_waits_for_what_was_written(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    for number in range(10):
        await sandbox.write(topic, b"%d" % number)
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(place)) == [b"%d" % number for number in range(10)]


async def test_closing_a_topic_waits_for_what_was_written(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    sent = [await sandbox.write(topic, b"%d" % number) for number in range(10)]
    await topic.close()
    for each in sent:
        await each.synced()
    topic = await sandbox.open(place)
    assert await sandbox.content(topic) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("durability", [DURABILITY_SYNCED, DURABILITY_WRITTEN])
async def test_both_durabilities_are_known(sandbox: Sandbox, durability: str) -> None:
    place = await sandbox.create()
    await sandbox.reopen(durability=durability)
    topic = await sandbox.open(place)
    await sandbox.send(topic, b"a")
    assert (await topic.status()).end == (await topic.status()).next
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(place)) == [b"a"]


@needs(CAP_DURABLE)
@pytest.mark.parametrize("rounds", [1, 20])
async def test_a_process_that_is_killed_loses_nothing_that_it_was_told_to_be_stored(
    sandbox: Sandbox, environment: dict[str, str], rounds: int
) -> None:
    place, key = await sandbox.create(), sandbox.key("number")
    await sandbox.close()
    command = [sys.executable, "-m", "kclient.htp.contract.killed", sandbox.url, *place.topic, key]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        reached = 0
        for _ in range(rounds):
            line = process.stdout.readline()
            assert line, "the process that opens the store anew has ended"
            reached = int(line)
        process.kill()
        rest = process.stdout.read().split()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    reached = max([reached, *map(int, rest[:-1])])  # the last line may be cut off
    await sandbox.reopen()
    if sandbox.claims(CAP_FENCED_SENDS):
        with pytest.raises(FencedError):  # the seal was told to be durable, too
            await sandbox.open(place, epoch=EPOCH - 1)
    [lease] = await sandbox.manager.leases(key)
    assert lease.epoch >= EPOCH, "nobody gets it again"
    topic = await sandbox.open(place, epoch=EPOCH + 1)
    found = await sandbox.content(topic)
    assert found == [b"%010d" % number for number in range(len(found))], "in order, and each once"
    assert len(found) >= reached
    assert int((await sandbox.manager.get([key]))[key].value) >= reached
    await sandbox.send(topic, b"more")
    assert (await sandbox.content(topic))[-1] == b"more"
