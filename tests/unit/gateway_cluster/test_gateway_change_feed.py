"""The log of changes is told to whom it concerns, whatever the store does meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ClosedError, KafkaError, KafkaStorageError
from kclient.gateway.change_feed import ChangeFeed
from kclient.htp import StorageError, open_store
from kclient.htp.port import Change
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio


async def test_a_store_that_fails_is_asked_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.gateway.change_feed._AGAIN_S", 0.001)
    told: list[Change] = []

    class Follower:
        prefixes = ("a/",)
        failing = 2

        async def apply(self, changes: Sequence[Change]) -> None:
            if self.failing:
                self.failing -= 1
                raise StorageError("not now")
            told.extend(changes)

        async def read_all(self) -> None:
            raise AssertionError("nothing was forgotten")

    async with open_store(url) as store:
        feed = ChangeFeed(store.manager, [Follower()])
        await feed.begin()
        async with anyio.create_task_group() as group:
            group.start_soon(feed.run)
            for number in range(5):
                await store.manager.commit({"a/1": b"%d" % number, "b/1": b"unknown"})
            await until(lambda: told and told[-1].value == b"4")
            group.cancel_scope.cancel()
        assert {change.key for change in told} == {"a/1"}


@pytest.mark.parametrize("error", [KafkaStorageError("not now"), ClosedError("given up")], ids=["fails", "closes"])
async def test_a_follower_that_fails_is_told_again_and_one_that_is_given_up_is_not(
    url: str, monkeypatch: pytest.MonkeyPatch, error: KafkaError
) -> None:
    monkeypatch.setattr("kclient.gateway.change_feed._AGAIN_S", 0.001)
    told: list[Change] = []

    class Follower:
        prefixes = ("a/",)
        failing = True

        async def apply(self, changes: Sequence[Change]) -> None:
            if self.failing:
                self.failing = False
                raise error
            told.extend(changes)

        async def read_all(self) -> None:
            raise AssertionError("nothing was forgotten")

    async with open_store(url) as store:
        feed = ChangeFeed(store.manager, [Follower()])
        await feed.begin()
        await store.manager.commit({"a/1": b"1"})
        with anyio.fail_after(20):
            if isinstance(error, ClosedError):
                await feed.run()
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(feed.run)
                    await until(lambda: told)
                    group.cancel_scope.cancel()
        assert len(told) == (0 if isinstance(error, ClosedError) else 1)


class Book:
    """Knows what is written below a prefix."""

    def __init__(self, manager: Any, prefix: str) -> None:
        self.prefixes = (prefix,)
        self.pages: dict[str, bytes] = {}
        self.read = 0
        self._manager = manager

    async def apply(self, changes: Sequence[Change]) -> None:
        for key, value, _ in changes:
            if value is None:
                self.pages.pop(key, None)
            else:
                self.pages[key] = value

    async def read_all(self) -> None:
        self.read += 1
        found = await self._manager.scan(self.prefixes[0], limit=1000)
        self.pages = {key: row.value for key, row in found.items()}


class ShortLog:
    """A manager whose log of changes has been forgotten when it is asked for the first time."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._forgotten = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def changes(self, prefixes: Any, since: str | None = None, **options: Any) -> Any:
        if since is not None and not self._forgotten:
            self._forgotten = True
            since = "1.0"  # another store's
        return await self._manager.changes(prefixes, since, **options)


async def test_what_was_forgotten_is_read_anew(url: str) -> None:
    async with open_store(url) as store:
        manager: Any = ShortLog(store.manager)
        books = Book(store.manager, "a/"), Book(store.manager, "b/")
        feed = ChangeFeed(manager, books)
        await feed.begin()
        await store.manager.commit({"a/1": b"1", "b/1": b"2", "c/1": b"3"})
        async with anyio.create_task_group() as group:
            group.start_soon(feed.run)
            await until(lambda: books[0].pages and books[1].pages)
            await store.manager.commit({"a/1": None, "b/2": b"4"})
            await until(lambda: not books[0].pages and len(books[1].pages) == 2)
            group.cancel_scope.cancel()
        assert [book.read for book in books] == [1, 1]
        assert books[1].pages == {"b/1": b"2", "b/2": b"4"}
