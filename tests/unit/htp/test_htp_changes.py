"""Following what changes in a manager: nothing is missed, in order, and who is too far behind is told so."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import mock

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kclient.htp import (
    Change,
    HtpError,
    Manager,
    Store,
    StoreClosedError,
    TokenTooOldError,
    memory,
    open_store,
)
from kclient.htp.change_tokens import MOST_FOLLOWED
from kclient.htp.embedded import changes as embedded_changes
from kclient.htp.embedded.manager import SqliteManager
from kclient.htp.memory import changes as memory_changes
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.state import MemoryState
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from tests.all_rows import scan_all
from tests.example_budget import examples
from tests.unit.htp.plain_messages import FRAMING, TOPIC

T = TypeVar("T")

pytestmark = pytest.mark.anyio

A = ["a/"]


@pytest.fixture
async def manager(store_url: str) -> AsyncIterator[Manager]:
    async with open_store(store_url) as store:
        yield store.manager


async def begin(manager: Manager, *prefixes: str) -> str:
    page = await manager.changes(prefixes)
    assert (page.changes, page.more) == ([], False)
    return page.token


async def told(manager: Manager, prefixes: list[str], token: str, limit: int = 1000) -> list[Change]:
    """All changes since a token, read in pages."""
    found: list[Change] = []
    while True:
        page = await manager.changes(prefixes, token, limit=limit)
        assert len(page.changes) <= limit
        found += page.changes
        token = page.token
        if not page.more:
            return found
        assert len(page.changes) == limit


# --- what is told, and in which order ---


async def test_what_the_store_writes_of_its_own_is_told_too(store_url: str) -> None:
    """A topic's checkpoint is a row of the embedded broker's."""
    async with open_store(store_url) as store:
        token = await begin(store.manager, "brk/")
        await store.manager.create_domain(TOPIC.domain)
        place = (await store.manager.create_topic(TOPIC)).place
        await store.broker.open(place, FRAMING, epoch=1)
        rows = await scan_all(store.manager, "brk/")
        assert {change.key: change.value for change in await told(store.manager, ["brk/"], token)} == {
            key: row.value for key, row in rows.items()
        }
        assert bool(rows) is store_url.startswith("embedded:")


# --- waiting ---


async def test_what_concerns_others_wakes_nobody(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each commit would have all who follow anything look, one after the other."""
    looks = 0
    kind = embedded_changes.ChangeLog if isinstance(manager, SqliteManager) else memory_changes.MemoryChanges
    page = kind.page

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return page(*args, **options)

    token = await begin(manager, "a/", "b/")
    await manager.commit({"b/0": b""})  # the first has all look
    monkeypatch.setattr(kind, "page", counted)

    async def wait() -> None:
        assert (await manager.changes(A, token, wait=300)).changes

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await manager.get([])
            await anyio.wait_all_tasks_blocked()
            before = looks
            for number in range(5):
                await manager.commit({f"b/{number}": b""})
                await manager.get([])
                await anyio.wait_all_tasks_blocked()
            assert (before, looks) == (10, 10)
            await manager.commit({"a/1": b"1"})
    assert looks == 20


async def test_a_wait_ends_with_its_time_and_a_newer_token(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """So whoever follows what never changes falls not behind."""
    few_are_kept(monkeypatch, 10)
    both = ["a/", "b/"]
    old = token = await begin(manager, *both)
    await manager.commit({"a/1": b"1"})
    token = (await manager.changes(A, token)).token
    for number in range(50):
        await manager.commit({f"b/{number}": b""})
        page = await manager.changes(A, token, wait=0.001)
        assert (page.changes, page.more) == ([], False)
        token = page.token
    with pytest.raises(TokenTooOldError):
        await manager.changes(A, old)


async def test_who_waits_for_what_never_changes_does_not_fall_behind(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_are_kept(monkeypatch, 10)
    token = await begin(manager, "a/", "b/")
    found: list[Change] = []

    async def wait() -> None:
        found.extend((await manager.changes(A, token, wait=300)).changes)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for number in range(50):
                await manager.commit({f"b/{number}": b""})
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            last = await manager.commit({"a/1": b"1"})
    assert found == [Change("a/1", b"1", last)]


async def test_a_wait_may_be_cancelled_anywhere(manager: Manager) -> None:
    token = await begin(manager, "a/")

    async def scenario(cancelled: Cancelled) -> None:
        await cancelled(manager.changes(A, token, wait=0.01))
        assert await told(manager, A, token) == []

    assert await at_every_checkpoint(scenario) >= 1
    await manager.commit({"a/1": b"1"})
    assert len(await told(manager, A, token)) == 1


# --- tokens ---


def few_are_kept(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for module in (memory_changes, embedded_changes):
        monkeypatch.setattr(module, "CHANGES_KEPT", number)


@pytest.mark.slow
async def test_who_is_too_far_behind_is_told_to_scan_again(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_kept(monkeypatch, 100)
    tokens = [await begin(manager, "a/")]
    for number in range(300):
        await manager.commit({f"a/{number}": b"", f"b/{number}": b"", f"a/{number - 150}": None})
        tokens.append(await begin(manager, "a/"))
    refusals: list[str] = []
    for number, token in enumerate(tokens):
        try:
            found = await told(manager, A, token)
        except TokenTooOldError as error:
            refusals.append(str(error))
            assert len(refusals) == number + 1, "only the oldest are too old"
        else:
            written = [each.key for each in found if each.value is not None]
            deleted = [each.key for each in found if each.value is None]
            assert written == [f"a/{each}" for each in range(max(number, 150), 300)]
            assert deleted == [f"a/{each - 150}" for each in range(max(number, 150), 300)]
    assert all("too old" in text and "scan again" in text for text in refusals)
    assert 0 < len(refusals) < 250


async def test_one_commit_larger_than_what_is_kept_is_told_whole(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_are_kept(monkeypatch, 100)
    token = await begin(manager, "a/")
    keys = [f"a/{number:04}" for number in range(1200)]
    await manager.commit(dict.fromkeys(keys, b""))
    assert [change.key for change in await told(manager, A, token, 50)] == keys
    await manager.commit(dict.fromkeys(keys))
    found = await told(manager, A, token, 50)
    assert [(change.key, change.value) for change in found] == [(key, None) for key in keys]


async def test_a_token_of_before_a_prefix_was_followed_is_too_old(manager: Manager) -> None:
    token = await begin(manager, "a/1")
    await manager.commit({"a/1": b"1", "a/2": b"2"})
    with pytest.raises(TokenTooOldError, match="nobody followed 'a/' at that time: scan again"):
        await manager.changes(A, token)
    with pytest.raises(TokenTooOldError):
        await manager.changes(["b"], token)
    later = await begin(manager, "a/")
    with pytest.raises(TokenTooOldError):
        await manager.changes(A, token)
    assert await told(manager, A, later) == []
    assert [change.key for change in await told(manager, ["a/1"], token)] == ["a/1"]
    assert [change.key for change in await told(manager, ["a/1", "a/11"], token)] == ["a/1"], "a shorter one is"


async def test_a_token_of_another_store_is_refused(manager: Manager, tmp_path: Path) -> None:
    others = [f"embedded:{tmp_path / 'other'}", f"memory:{tmp_path}"]
    token = await begin(manager, "a/")
    for url in others:
        async with open_store(url) as other:
            theirs = await begin(other.manager, "a/")
            with pytest.raises(TokenTooOldError, match="another store's"):
                await other.manager.changes(A, token)
            with pytest.raises(TokenTooOldError, match="another store's"):
                await manager.changes(A, theirs)
    memory.reset(str(tmp_path))


async def test_a_store_that_went_back_in_time_refuses_the_token(tmp_path: Path) -> None:
    """As where a backup was restored: what has changed since that is not what the token's owner has seen."""
    url = f"embedded:{tmp_path / 'data'}"
    async with open_store(url) as store:
        await begin(store.manager, "a/")
        await store.manager.commit({"a/1": b"1"})
        token = await begin(store.manager, "a/")
    with sqlite3.connect(tmp_path / "data" / "mgr" / "mgr.db") as database:
        database.execute("UPDATE counters SET value = value - 1 WHERE name = 'revision'")
    database.close()
    async with open_store(url) as store:
        with pytest.raises(TokenTooOldError, match="was replaced since"):
            await store.manager.changes(A, token)


async def test_a_reset_of_a_store_in_memory_ends_waits_and_tokens(tmp_path: Path) -> None:
    url = f"memory:{tmp_path}"
    async with open_store(url) as store:
        manager, token = store.manager, await begin(store.manager, "a/")

        async def wait() -> None:
            with pytest.raises(StoreClosedError, match="was reset"):
                await manager.changes(A, token, wait=300)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.lowlevel.checkpoint()
                memory.reset(str(tmp_path))
    async with open_store(url) as store:
        await begin(store.manager, "a/")
        with pytest.raises(TokenTooOldError):
            await store.manager.changes(A, token)
    memory.reset(str(tmp_path))


@pytest.mark.parametrize("token", ["", "x", "1", "1.", "1.x", "1.-1", "g.1", "1.1e9"])
async def test_what_is_no_token(manager: Manager, token: str) -> None:
    await begin(manager, "a/")
    with pytest.raises(ValueError, match="is not a token"):
        await manager.changes(A, token)


async def test_wrong_prefixes(manager: Manager) -> None:
    with pytest.raises(TypeError, match="several texts, not 'a/'"):
        await manager.changes("a/")
    with pytest.raises(ValueError, match="no prefix"):
        await manager.changes([])


async def test_not_everything_is_followed(manager: Manager) -> None:
    prefixes = [f"{number}/" for number in range(MOST_FOLLOWED)]
    token = await begin(manager, *prefixes)
    with pytest.raises(HtpError, match=f"{MOST_FOLLOWED} prefixes are followed; with 'more' they are too many"):
        await manager.changes(["more"])
    assert await begin(manager, *prefixes, "7/7") == token
    await manager.commit({"more": b"", "3/": b""})
    assert [change.key for change in await told(manager, prefixes, token)] == ["3/"]


# --- two managers of one database, or of one store in memory ---


@pytest.fixture(params=["database", "memory"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Manager]]:
    if request.param == "memory":
        state = MemoryState("pair")
        yield [MemoryManager(state), MemoryManager(state)]
        return
    async with AsyncExitStack() as stack:
        managers = [SqliteManager(str(tmp_path / "mgr.db"), print, exclusive=False) for _ in range(2)]
        for manager in managers:
            stack.push_async_callback(manager.aclose)
            await manager.start()
        yield list(managers)


async def test_one_follows_what_the_other_writes(pair: list[Manager]) -> None:
    first, second = pair
    await first.commit({"a/1": b"1"})
    token = await begin(second, "a/")
    first_token = await begin(first, "a/")
    page = None

    async def wait() -> None:
        nonlocal page
        page = await second.changes(A, token, wait=300)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await first.commit({"b": b""})
            version = await first.commit({"a/1": None, "b": b""})
    assert page is not None
    assert page.changes == [Change("a/1", None, version)]
    again = await second.commit({"a/1": b"2"})
    expected = [Change("a/1", None, version), Change("a/1", b"2", again)]
    assert await told(first, A, first_token) == expected
    assert await told(second, A, token) == expected


async def test_a_prefix_is_followed_that_another_one_asked_for(pair: list[Manager]) -> None:
    first, second = pair
    await first.commit({"a/1": b"1"})  # it knows by now that nothing is followed
    token = await begin(second, "a/")
    version = await first.commit({"a/1": None})
    assert await told(second, A, token) == [Change("a/1", None, version)]


# --- what earlier versions wrote ---


async def test_a_directory_of_an_earlier_format_is_followed(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    async with open_store(url) as store:
        await store.manager.commit({"a/1": b"1", "a/2": b"2"})
    with sqlite3.connect(tmp_path / "data" / "mgr" / "mgr.db") as database:
        database.execute("DROP TABLE changes")
        database.execute("DROP TABLE followed")
    database.close()
    (tmp_path / "data" / "format.json").write_text(json.dumps({"format": 2}))
    async with open_store(url) as store:
        token = await begin(store.manager, "a/")
        version = await store.manager.commit({"a/1": None})
        assert await told(store.manager, A, token) == [Change("a/1", None, version)]


# --- whatever happens (hypothesis) ---

KEYS = st.sampled_from(["a/1", "a/2", "a/3", "b/1", "b/2", "c"])
PREFIXES = st.sampled_from([["a/"], ["b/"], ["a/", "b/"], ["a/1"], [""]])


@contextmanager
def kept(number: int) -> Iterator[None]:
    with (
        mock.patch.object(memory_changes, "CHANGES_KEPT", number),
        mock.patch.object(embedded_changes, "CHANGES_KEPT", number),
    ):
        yield


class ChangesMachine(RuleBasedStateMachine):
    """The model: a list of all commits. A mark stays where it is; a replica follows."""

    backend: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.url = f"embedded:{folder}/data" if self.backend == "embedded" else "memory:changes"
        memory.reset("changes")
        self.stack.enter_context(kept(8))
        self.portal: BlockingPortal = self.stack.enter_context(start_blocking_portal("asyncio"))
        self.commits: list[tuple[int, dict[str, bytes | None]]] = []
        self.values: dict[str, bytes] = {}
        self.marked: list[str] = []
        self.mark: str | None = None
        self.since = 0
        """How many commits there were before the mark."""
        self.followed: list[str] = []
        self.token: str | None = None
        self.replica: dict[str, bytes] = {}
        self.open()

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return self.portal.call(function, *args)

    def open(self) -> None:
        self.store: Store = open_store(self.url)
        self.run(self.store.__aenter__)

    def teardown(self) -> None:
        try:
            self.run(self.store.aclose)
        finally:
            self.stack.close()

    @rule(writes=st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=4))
    def commit(self, writes: dict[str, bytes | None]) -> None:
        version = self.run(self.store.manager.commit, writes)
        there = {key: value for key, value in writes.items() if value is not None or key in self.values}
        self.commits.append((version, there))
        for key, value in there.items():
            if value is None:
                del self.values[key]
            else:
                self.values[key] = value

    @rule()
    def reopen(self) -> None:
        self.run(self.store.aclose)
        self.open()

    @rule(prefixes=PREFIXES)
    def set_mark(self, prefixes: list[str]) -> None:
        self.mark = self.run(self.store.manager.changes, prefixes).token
        self.marked, self.since = prefixes, len(self.commits)

    @precondition(lambda self: self.mark is not None)
    @rule(limit=st.integers(1, 9))
    def tell_all_since_the_mark(self, limit: int) -> None:
        """It may be too old only if more was changed than is kept."""
        try:
            found = self.run(told, self.store.manager, self.marked, self.mark, limit)
        except TokenTooOldError:
            assert sum(len(writes) for _, writes in self.commits[self.since :]) > 8
            self.mark = None
            return
        last: dict[tuple[str, bool], Change] = {}
        for version, writes in self.commits[self.since :]:
            for key, value in writes.items():
                if key.startswith(tuple(self.marked)):
                    if value is None:
                        last.pop((key, False), None)
                    last[key, value is None] = Change(key, value, version)
        assert found == sorted(last.values(), key=lambda change: (change.version, change.key))

    def below(self, prefixes: list[str]) -> dict[str, bytes]:
        return {key: value for key, value in self.values.items() if key.startswith(tuple(prefixes))}

    @rule(prefixes=PREFIXES)
    def begin_to_follow(self, prefixes: list[str]) -> None:
        self.token = self.run(self.store.manager.changes, prefixes).token
        self.followed, self.replica = prefixes, self.below(prefixes)

    @precondition(lambda self: self.token is not None)
    @rule(limit=st.integers(1, 3))
    def follow(self, limit: int) -> None:
        """A page; the replica is as the store once there are no more."""
        try:
            page = self.run(partial(self.store.manager.changes, self.followed, self.token, limit=limit))
        except TokenTooOldError:
            self.token = None
            return
        self.token = page.token
        for change in page.changes:
            if change.value is None:
                self.replica.pop(change.key, None)
            else:
                self.replica[change.key] = change.value
        assert page.more or self.replica == self.below(self.followed)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "embedded"])
def test_whatever_happens_nothing_is_missed(backend: str) -> None:
    machine = type("Machine", (ChangesMachine,), {"backend": backend})
    test = machine.TestCase  # type: ignore[attr-defined]
    test.settings = examples(15 if backend == "embedded" else 60, stateful_step_count=40)
    test().runTest()
