"""One store that is open twice, as several gateways have it, and one that nobody else may have meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import anyio
import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import FRAMING, payloads
from kclient.htp.contract.refusals import all_refused
from kclient.htp.contract.report import NOT_TESTABLE, VERDICT
from kclient.htp.contract.sandbox import EPOCH, ROWS, Sandbox
from kclient.htp.errors import ConflictError, FencedError, LeaseHeldError, TopicExistsError, UnknownTopicError
from kclient.htp.port import CAP_EXCLUSIVE, CAP_FENCED_SENDS, CAP_ORDINAL_POSITIONS, CAP_SHARED, Change, Store
from kclient.htp.store import open_store

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("two openings")]


@pytest.fixture
async def second(sandbox: Sandbox, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """The same store, opened by somebody else."""
    if sandbox.claims(CAP_EXCLUSIVE):
        request.node.user_properties.append((VERDICT, NOT_TESTABLE))
        pytest.skip(f"{NOT_TESTABLE}: the store is open once at a time")
    async with open_store(sandbox.url) as store:
        yield store


async def test_either_finds_what_the_other_has_made(sandbox: Sandbox, second: Store) -> None:
    place = await sandbox.create()
    assert (await second.manager.describe_topic(place.topic)).place == place
    with pytest.raises(TopicExistsError):
        await second.manager.create_topic(place.topic)
    version = await sandbox.manager.commit({sandbox.key("a"): b"1"})
    assert await second.manager.get([sandbox.key("a")]) == {sandbox.key("a"): (b"1", version)}
    newer = await second.manager.commit({sandbox.key("a"): b"2"}, {sandbox.key("a"): version})
    assert newer > version
    with pytest.raises(ConflictError):
        await sandbox.manager.commit({sandbox.key("a"): b"3"}, {sandbox.key("a"): version})


async def test_a_lease_of_one_is_seen_by_the_other(sandbox: Sandbox, second: Store) -> None:
    name = sandbox.key("lease")
    lease = await sandbox.manager.acquire(name, "one", 60)
    with pytest.raises(LeaseHeldError):
        await second.manager.acquire(name, "two", 60)
    [seen] = await second.manager.leases(name)
    taken = await second.manager.acquire(name, "two", 60, over=seen)
    assert taken.epoch > lease.epoch
    for refused in (
        sandbox.manager.renew(lease),
        sandbox.manager.commit({sandbox.key("a"): b"1"}, lease=lease),
        sandbox.manager.delete_topics([sandbox.name()], lease=lease),
    ):
        with pytest.raises(FencedError):
            await refused
    await sandbox.manager.release(lease)
    [left] = await sandbox.manager.leases(name)
    assert left[:5] == (name, "two", taken.epoch, 60.0, True)


async def test_who_waits_is_told_of_what_the_other_changes(sandbox: Sandbox, second: Store) -> None:
    token = (await sandbox.manager.changes([ROWS])).token
    found: list[Change] = []

    async def wait() -> None:
        found.extend((await sandbox.manager.changes([sandbox.rows], token, wait=300)).changes)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            version = await second.manager.commit({sandbox.key("a"): b"1"})
    assert found == [Change(sandbox.key("a"), b"1", version)]


@needs(CAP_FENCED_SENDS)
async def test_a_topic_is_taken_from_the_other(sandbox: Sandbox, second: Store) -> None:
    place = await sandbox.create()
    old = await sandbox.open(place, epoch=1)
    await sandbox.send(old, b"a")
    new = await second.broker.open(place, FRAMING, epoch=2)
    await all_refused(sandbox, old, FencedError)
    with pytest.raises(FencedError):
        await sandbox.open(place, epoch=1)
    await sandbox.send(new, b"b")
    back = await sandbox.open(place, epoch=3)
    with pytest.raises(FencedError):
        await sandbox.write(new, b"late")
    assert await sandbox.content(back) == [b"a", b"b"]


async def test_what_one_deletes_the_other_has_no_more(sandbox: Sandbox, second: Store) -> None:
    place = await sandbox.create()
    topic, neighbour = await sandbox.open(place), await sandbox.topic("other")
    await sandbox.send(topic, b"a")
    await sandbox.send(neighbour, b"x")
    await second.broker.delete([place], epoch=EPOCH)
    await all_refused(sandbox, topic, UnknownTopicError)
    assert payloads((await neighbour.pull((await neighbour.status()).start)).data) == [b"x"]


@needs(CAP_SHARED)
async def test_what_sharing_needs_is_there(sandbox: Sandbox) -> None:
    """Nothing else keeps several gateways apart."""
    assert sandbox.capabilities >= {CAP_FENCED_SENDS, CAP_ORDINAL_POSITIONS}


_OPENING = """
import sys
import anyio
from kclient.htp import open_store

async def main():
    async with open_store(sys.argv[1]):
        pass

try:
    anyio.run(main)
except Exception as error:
    print(type(error).__name__)
else:
    print("opened")
"""


@needs(CAP_EXCLUSIVE)
async def test_a_store_that_is_open_is_refused_to_others(sandbox: Sandbox, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", _OPENING, sandbox.url]
    for expected in ("LockedError", "opened"):
        done = await anyio.run_process(command, env=environment, stderr=subprocess.PIPE, check=False)
        assert done.stdout.split() == [expected.encode()], done.stderr.decode()
        await sandbox.close()
