"""The backend `embedded:DIRECTORY`: messages in files, management in SQLite, nothing to start.

It needs the extra `gateway` (SQLAlchemy).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio

from kclient.arguments import shown
from kclient.concurrency import thread_to_the_end, to_the_end
from kclient.errors import ConfigError, MissingExtraError
from kclient.htp.brokers import FIRST_BROKER, brokers_asked_for, check_enough
from kclient.htp.embedded.directory import DataDirectory
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.space import opening_error
from kclient.htp.embedded.syncer import GROUP_SYNC_MODES
from kclient.htp.errors import StorageError, StoreClosedError, TooFewBrokersError
from kclient.htp.port import DURABILITY_SYNCED, DURABILITY_WRITTEN, TopicSettings
from kclient.htp.urls import split_options

if TYPE_CHECKING:
    from kclient.htp.embedded.broker import EmbeddedBroker
    from kclient.htp.embedded.brokers import EmbeddedBrokers
    from kclient.htp.embedded.ends import Ends
    from kclient.htp.embedded.faults import EmbeddedFaults
    from kclient.htp.embedded.manager import SqliteManager
    from kclient.htp.embedded.shard import Shard
    from kclient.htp.embedded.watermark import Watermark
    from kclient.htp.port import DiskSpace

logger: logging.Logger = logging.getLogger(__name__)

__all__ = ["EmbeddedStore", "open_embedded"]

MIN_FREE_OPTION: Final = "min_free_bytes (log.dir.min.free.bytes of a gateway)"
"""What the option is called where those of another process differ."""
_LEND_AGAIN_S: Final = 0.1
_LEND_S: Final = 10.0
"""Seconds after which it is looked again what other processes want, though they have changed nothing since."""


def open_embedded(
    path: str,
    *,
    durability: str = DURABILITY_SYNCED,
    settings: TopicSettings | None = None,
    group_sync: str = "auto",
    max_open_files: int | None = None,
    min_free_bytes: int | None = None,
    files: Files | None = None,
    faults: bool = False,
    brokers: int | None = None,
    together: bool = False,
) -> EmbeddedStore:
    """The store in a data directory; `async with` opens it.

    Args:
        path: The directory; made if it does not exist. `?brokers=N`, `?min_free_bytes=NUMBER` or both, with `&` between
            them, may follow.
        durability: `synced`: messages are visible and acknowledged when they are on disk; `written`: when the
            operating system has them, as Kafka does by default.
        settings: Layout of topics that are opened without settings of their own.
        group_sync: `auto`; `each`: never sync the whole file system at once; `filesystem`: always.
        max_open_files: Segments that are open at a time, of all brokers together, each of which has its part; if None,
            as many as the process may open and leaves to them.
        min_free_bytes: With less space left on the file system of the directory, messages are refused
            (`StorageFullError`), so that deletions, trims and commits still have some; with less than twice that, the
            log warns. A broker whose directory lies on another file system goes by the space of that one. None and 0:
            messages are taken until there is no space.
        files: Stands in for the operating system's files, in tests.
        faults: Whether the store can be made to fail, for tests: `EmbeddedStore.faults`.
        brokers: How many there are, 1 to 256: each has a directory and a thread of its own, and topics can be bound to
            it. If None, as many as the last time, at first one.
        together: Whether other processes that say the same may have the directory open meanwhile, with the same
            `durability` and `min_free_bytes`, and as many brokers. A topic's files are one process's at a time:
            `EmbeddedStore.lend`, which has to run, gives up what another one opens under a newer epoch.

    Raises:
        ConfigError: If an option has no such value.
        MissingExtraError: If SQLAlchemy is not installed.
    """
    path, options = split_options(path)
    brokers = _brokers(brokers, options)
    min_free_bytes = _min_free_bytes(min_free_bytes, options)
    if not path:
        raise ConfigError("embedded: needs a directory, as in embedded:./data")
    if durability not in (DURABILITY_SYNCED, DURABILITY_WRITTEN):
        raise ConfigError(f"durability is {DURABILITY_SYNCED!r} or {DURABILITY_WRITTEN!r}, not {shown(durability)}")
    if group_sync not in GROUP_SYNC_MODES:
        raise ConfigError(f"group_sync is one of {', '.join(GROUP_SYNC_MODES)}, not {group_sync!r}")
    if faults and files is not None:
        raise ConfigError("embedded: give faults or files: faults stands in for the files itself")
    try:
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("SQLAlchemy", "gateway", "Embedded HTP") from error
    if faults:
        from kclient.htp.embedded.faults import FaultyFiles

        files = FaultyFiles()
    return EmbeddedStore(
        path, durability, settings or TopicSettings(), group_sync, max_open_files, min_free_bytes, files or Files(),
        brokers, together,
    )  # fmt: skip


def _brokers(given: int | None, options: dict[str, str]) -> int | None:
    """The option, from the call or the address."""
    if unknown := options.keys() - {"brokers", "min_free_bytes"}:
        raise ConfigError(
            f"{shown(min(unknown))} is not an option of a store's address: there are ?brokers=N and "
            "?min_free_bytes=NUMBER"
        )
    told = f"?brokers={options['brokers']}" if "brokers" in options else ""
    return brokers_asked_for(told, given)[1]


def _min_free_bytes(given: int | None, options: dict[str, str]) -> int:
    """The option, from the call or the address."""
    text = options.get("min_free_bytes")
    if text is None:
        found: object = 0 if given is None else given
    elif given is not None:
        raise ConfigError("min_free_bytes is given twice: in the address, and beside it")
    else:
        found = int(text) if text.isascii() and text.isdigit() else text
    if type(found) is not int or found < 0:
        raise ConfigError(f"min_free_bytes is a number of bytes, 0 or more, not {shown(found)}")
    return found


def _lost_shard(path: str, what: str) -> str:
    """That the directory of a broker is not there, and what helps."""
    return (
        f"{path} is {what}, and topics were kept in it: mount its disk, or restore the data directory from a backup. "
        f"If it is lost for good, make an empty one (mkdir -p {shlex.quote(path)}/topics), and delete those topics"
    )


class EmbeddedStore:
    """A data directory, opened by its owner."""

    def __init__(
        self,
        path: str,
        durability: str,
        settings: TopicSettings,
        group_sync: str,
        max_open_files: int | None,
        min_free_bytes: int,
        files: Files,
        brokers: int | None,
        together: bool,
    ) -> None:
        self._brokers = brokers
        self._together = together
        self._durability = durability
        self._settings = settings
        self._group_sync = group_sync
        self._max_open_files = max_open_files
        self._min_free_bytes = min_free_bytes
        self._files = files
        self._path = str(Path(path).absolute())
        self._stack: AsyncExitStack | None = None
        self._failure: StorageError | None = None
        self._when_failed: dict[object, Callable[[StorageError], object]] = {}
        self._manager: SqliteManager | None = None
        self._broker: EmbeddedBroker | EmbeddedBrokers | None = None
        self._shards: list[EmbeddedBroker] = []
        self._watermark: Watermark | None = None

    @property
    def path(self) -> str:
        """The data directory, as an absolute path."""
        return self._path

    @property
    def manager(self) -> SqliteManager:
        """The management part."""
        if self._manager is None:
            raise StoreClosedError(f"{self.path} is not open")
        return self._manager

    @property
    def broker(self) -> EmbeddedBroker | EmbeddedBrokers:
        """The messages."""
        if self._broker is None:
            raise StoreClosedError(f"{self.path} is not open")
        return self._broker

    def space(self) -> DiskSpace:
        """What is left on the file system of the data directory, as of five seconds ago at the most."""
        if self._watermark is None:
            raise StoreClosedError(f"{self.path} is not open")
        return self._watermark.space()

    @property
    def faults(self) -> EmbeddedFaults:
        """Has the store fail, for tests. Raises `AttributeError` unless it was made with `faults=True`."""
        from kclient.htp.embedded.faults import EmbeddedFaults, FaultyFiles

        if not isinstance(self._files, FaultyFiles):
            raise AttributeError("only a store made with faults=True can be made to fail")
        return EmbeddedFaults(self._files, lambda place: self.broker.log_of(place))

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            LockedError: If it is open already, here or in another process.
            ConfigError: If it is open in another process that was given other options.
            FormatVersionError: If a newer version of kclient wrote it, or it holds something else.
            TooFewBrokersError: If more brokers hold topics than it is to have.
            StorageError: If the file system refuses, or the directory of a broker that holds topics is missing.
            StorageFullError: If it refuses for want of space.
        """
        stack = AsyncExitStack()
        try:
            self._manager, self._broker = await self._open(stack)
        except BaseException:  # cancelled too: nothing of it stays open
            await to_the_end(stack.aclose)
            raise
        self._stack = stack
        return self

    async def _open(self, stack: AsyncExitStack) -> tuple[SqliteManager, EmbeddedBroker | EmbeddedBrokers]:
        """Open each part; its closing is entered first, because a part that was cut off may have taken something."""
        from kclient.htp.embedded.broker import EmbeddedBroker
        from kclient.htp.embedded.brokers import EmbeddedBrokers
        from kclient.htp.embedded.ends import EndsSocket
        from kclient.htp.embedded.manager import SqliteManager
        from kclient.htp.embedded.shared import SharedByBrokers
        from kclient.htp.embedded.watermark import Watermarks

        together = self._together
        options = {"durability": self._durability, MIN_FREE_OPTION: self._min_free_bytes}
        directory = DataDirectory(self.path, self._files, self._brokers, together=together, options=options)
        stack.callback(directory.close)
        try:
            await thread_to_the_end(directory.open)
        except OSError as error:
            raise opening_error(self.path, error, str(error)) from error
        self._failure = None
        self._shards = []
        names = [shard.name for shard in directory.shards]
        manager = SqliteManager(
            f"{directory.manager_path}/mgr.db",
            self._failed,
            exclusive=not together,  # because of the lock
            brokers=names,
            processes=directory.processes if together else None,
            joined=directory.joined,
        )
        stack.push_async_callback(manager.aclose)
        await manager.start()
        await self._check_enough(manager, len(names))
        await self._check_shards(manager, directory.shards)
        try:
            await thread_to_the_end(directory.record_brokers)
        except OSError as error:
            raise opening_error(self.path, error, str(error)) from error
        watermarks = Watermarks(self._files, self.path, self._min_free_bytes)
        stack.push_async_callback(thread_to_the_end, watermarks.stop)
        await thread_to_the_end(watermarks.start, [shard.path for shard in directory.shards])
        self._watermark = watermarks.of_data
        shared = SharedByBrokers(self._files, self._max_open_files, len(names))
        stack.callback(shared.close)
        known, last = await manager.incarnations()
        for shard in directory.shards:
            broker = EmbeddedBroker(
                shard,
                manager,
                self._files,
                self._failed,
                durability=self._durability,
                settings=self._settings,
                group_sync=self._group_sync,
                watermark=watermarks.of(shard.path),
                shared=shared,
                brokers=len(names),
                together=together,
            )
            stack.push_async_callback(broker.aclose)
            await broker.begin(known, last, joined=directory.joined)
            self._shards.append(broker)
        ends = EndsSocket(directory.shards[0].path, self._ends, directory.processes.number if together else None)

        def abandon() -> None:
            ends.abandon()
            manager.abandon()

        directory.on_fork = abandon
        stack.push_async_callback(thread_to_the_end, ends.stop)
        ends.start()
        if together and not directory.joined:
            await thread_to_the_end(directory.share)
        if len(names) == 1:
            return manager, self._shards[0]
        return manager, EmbeddedBrokers(dict(zip(names, self._shards, strict=True)))

    def _ends(self) -> Ends:
        """Where the logs of all shards end that may be written to."""
        return {incarnation: end for shard in self._shards for incarnation, end in shard.ends().items()}

    async def lend(self) -> None:
        """Give up the files of topics that other processes open under newer epochs: for ever, or until it is closed.

        Has to run as long as a store is open that was opened `together`.

        Raises:
            StorageError: The store has failed.
        """
        while self._together and (manager := self._manager) is not None:
            changed, again = manager.foreign, False
            try:
                if wanted := await manager.wanted():
                    for shard in list(self._shards):
                        again |= not await shard.give_up(wanted)
            except StoreClosedError:
                return
            except StorageError as error:
                if self._failure is not None:
                    raise
                # as while another process is stopped amid a transaction
                logger.warning("%s: what other processes want cannot be given up now: %s", self.path, error)
            with anyio.move_on_after(_LEND_AGAIN_S if again else _LEND_S):
                await changed.wait()

    async def _check_enough(self, manager: SqliteManager, number: int) -> None:
        try:
            check_enough(self.path, number, await manager.bound())
        except TooFewBrokersError as error:
            last = f"{self.path}/brk-{error.needed - 1}"
            if self._brokers is not None or await thread_to_the_end(self._files.exists, last):
                raise
            raise StorageError(_lost_shard(last, "missing")) from error

    async def _check_shards(self, manager: SqliteManager, shards: Sequence[Shard]) -> None:
        """Refuse shards that are missing, or not those of this store, before anything of them is touched."""
        bound = {name or FIRST_BROKER for name in await manager.bound()}
        missing = [shard for shard in shards if shard.is_new and shard.name in bound]
        for shard in missing:
            shard.unmake()
        if missing:
            raise StorageError(_lost_shard(missing[0].path, "missing or empty"))
        number = await manager.store_number()
        for shard in shards:
            try:
                await thread_to_the_end(shard.check_owner, number)
            except OSError as error:
                raise opening_error(shard.path, error, str(error)) from error

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await self.aclose()

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        """Have `callback(error)` called, once, if one of the store's threads ends by itself."""
        key = object()
        self._when_failed[key] = callback
        if self._failure is not None:
            callback(self._failure)
        return lambda: self._when_failed.pop(key, None) and None

    def _failed(self, error: StorageError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for broker in self._shards:
            broker.fail(error)
        for callback in list(self._when_failed.values()):
            callback(error)

    async def aclose(self) -> None:
        """Sync everything and close the store; closing it twice is no error."""
        stack, self._stack = self._stack, None
        if stack is not None:
            try:
                await to_the_end(stack.aclose)
            finally:
                self._manager = self._broker = self._watermark = None
                self._shards = []
