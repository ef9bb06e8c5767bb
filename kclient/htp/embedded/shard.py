"""A shard of a data directory: the lock that gives it one owner, and the directories of its topics."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterable
from typing import Final

from kclient.htp.brokers import FIRST_BROKER, MOST_BROKERS
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.errors import LockedError, StorageError
from kclient.htp.port import Place
from kclient.htp.rows import dump, parse_object, string, whole

logger: logging.Logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
OWNER_FILE: Final = "store.json"
"""Says whose shard it is: `{"store": NUMBER, "broker": "brk-N"}`; earlier versions wrote none."""
_NAME: Final = re.compile(r"brk-(0|[1-9]\d{0,2})")
_OPENING: Final = "opening"
_DELETED: Final = ".deleted"
_SET_ASIDE: Final = ".orphan"
"""The end of the name of a directory that belongs to no topic, though nobody has deleted it."""
_READABLE: Final = 180
"""Characters of a topic's name in its directory's; what is cut off is only missed by people."""


def shard_number(name: str) -> int | None:
    """The number of the shard whose directory is called so; None if none is."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found and int(found[1]) < MOST_BROKERS else None


def owner_of(content: bytes) -> tuple[int, str]:
    """The store, and the broker, whose shard a file `store.json` is in. Raises `ValueError` if it does not tell."""
    fields = parse_object(content)
    try:
        return whole(fields["store"]), string(fields["broker"])
    except LookupError as error:
        raise ValueError(f"{content[:200]!r} has no {error}") from error


def topic_directory(place: Place) -> str:
    """The name of the directory of a topic's segments."""
    readable = re.sub(r"[^A-Za-z0-9._~-]", "_", f"{place.topic.domain}~{place.topic.name}")[:_READABLE]
    return f"{readable}.{place.incarnation}"


def called(place: Place) -> str:
    """What a topic is called in logs and findings: its name, and its broker where that is not the first."""
    return str(place.topic) if place.broker in ("", FIRST_BROKER) else f"{place.topic} at {place.broker}"


def _write(lock: int, text: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, text.encode(), 0)


def _told(text: str) -> tuple[int | None, bool]:
    """The process that a lock tells of, and whether it will share it soon."""
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else None, words[1:] == [_OPENING]


class Shard:
    """What one broker keeps in a data directory.

    Args:
        path: The data directory.
        name: Of the broker, and of its directory in there.
        files: The file system.
    """

    def __init__(self, path: str, name: str, files: Files) -> None:
        self.name: str = name
        self.path: str = f"{path}/{name}"
        self.data_path: str = path
        """The data directory."""
        self.topics_path: str = f"{path}/{name}/topics"
        self._files = files
        self._lock: int | None = None
        self._made: list[str] = []
        """Directories of it that were not there."""
        self.on_fork: Callable[[], object] | None = None
        """Called in a forked child, which does not own the directory."""

    # --- the lock ---

    def take_lock(self, *, shared: bool = False) -> None:
        """Make the directory, and become its owner.

        Args:
            shared: Be one of several that are; each has to have said so.

        Raises:
            LockedError: If another process, or this one, is.
            OSError: If the file system refuses.
        """
        if self._files.make_directory(self.path):
            self._made.append(self.path)
        lock = os.open(f"{self.path}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            text = os.read(lock, 100).decode(errors="replace")
            os.close(lock)
            owner, opening = _told(text)
            who = f"process {owner}" if owner is not None else "another process"
            if owner == os.getpid():
                who = f"this process ({owner})"
            raise LockedError(
                f"{self.path} is in use by {who}; close it there, or name another directory",
                owner=owner,
                opening=opening,
            ) from None
        try:
            if not shared:
                _write(lock, f"{os.getpid()}\n")
        except BaseException:  # as on a full disk: else nobody could open it while this process lives
            os.close(lock)
            raise
        self._lock = lock

    def note_opening(self) -> None:
        """Tell others that it will be shared, once all is made that one makes alone."""
        assert self._lock is not None
        _write(self._lock, f"{os.getpid()} {_OPENING}\n")

    def note_owner(self) -> None:
        """Tell others that it is in use."""
        assert self._lock is not None
        _write(self._lock, f"{os.getpid()}\n")

    def share_lock(self) -> bool:
        """Let others be owners too, who say so; whether that was done, or somebody else is in the way for a moment."""
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            # closing alone would not do while a child that was just forked has not closed its copy
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._let_go()

    def _let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def abandon(self) -> None:
        """In a forked child: the parent stays the owner."""
        self._let_go()
        if self.on_fork is not None:
            self.on_fork()

    def make(self) -> None:
        """Make what is in the directory, durably; its own entry is the caller's affair."""
        if self._files.make_directory(self.topics_path):
            self._made.append(self.topics_path)
        self._files.sync_directory(self.path, SyncPoint.SHARD)
        self._files.sync_directory(self.topics_path, SyncPoint.TOPIC)

    def prove(self) -> None:
        """Have its disk answer; blocks, and raises `OSError` if that is an error."""
        self._files.prove(f"{self.path}/{LOCK_FILE}", f"{os.getpid()}\n".encode())

    @property
    def is_new(self) -> bool:
        """Whether nothing was kept in it before: its directory was missing, or empty as that of a disk not mounted."""
        return self.topics_path in self._made

    def unmake(self) -> None:
        """Remove what was made of a new one, and give up the lock: the next start is to find it missing again."""
        with contextlib.suppress(OSError):
            for directory in reversed(self._made):
                if directory == self.path:
                    os.unlink(f"{directory}/{LOCK_FILE}")  # noqa: PTH108
                os.rmdir(directory)  # noqa: PTH106
        self._made.clear()
        self.unlock()

    def check_owner(self, store: int) -> None:
        """See to it that this is the shard of a store, and of this number there; one that does not say is, from now on.

        Args:
            store: The number of the store.

        Raises:
            StorageError: It is another one's.
            OSError: The file system refuses.
        """
        path = f"{self.path}/{OWNER_FILE}"
        content = self._files.load(path)
        try:
            found = owner_of(content) if content else None
        except ValueError as error:  # its content is not synced, so that a power cut may have left none
            logger.warning("%s cannot be read, and is written anew (%s)", path, error)
            found = None
        if found is None:
            self._files.store(path, dump({"store": store, "broker": self.name}) + b"\n")
            return
        if found[0] != store:
            raise StorageError(
                f"{self.path} belongs to another store than {self.data_path}/mgr: was a wrong disk mounted there, or "
                "mgr lost, or taken from elsewhere? Nothing was changed: put back what belongs together, as from one "
                "backup. "
                f"If this does, remove {path}"
            )
        if found[1] != self.name:
            raise StorageError(
                f"{self.path} holds what {found[1]} keeps: are two disks mounted in each other's place? Nothing was "
                "changed: mount each where it was"
            )

    # --- topics ---

    def topic_path(self, place: Place) -> str:
        """The directory of a topic's segments."""
        return f"{self.topics_path}/{topic_directory(place)}"

    def make_topic(self, path: str) -> None:
        """Make a topic's directory, durably, if there is none."""
        if self._files.make_directory(path):
            try:
                self._files.sync_directory(self.topics_path, SyncPoint.TOPIC)
            except OSError:
                self._files.remove_tree(path)  # if it stayed, the next attempt would take it for durable
                raise

    def set_deleted(self, paths: Iterable[str]) -> list[str]:
        """Give topics' directories names that say they are gone, durably; the new paths of those there were."""
        targets = []
        for path in paths:
            target = path + _DELETED
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._files.rename(path, target)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    self._files.remove_tree(target)  # deleted, opened again, and now deleted a second time
                    self._files.rename(path, target)
                targets.append(target)
        if targets:
            self._files.sync_directory(self.topics_path, SyncPoint.DELETED)
        return targets

    def set_aside(self, paths: Iterable[str]) -> None:
        """Give directories names that say that they belong to no topic; nothing ever removes them."""
        for path in paths:
            self._files.rename(path, path + _SET_ASIDE)

    def incarnations(self) -> dict[str, int | None]:
        """The paths of all topics' directories, with their incarnation; None for one that was deleted."""
        found: dict[str, int | None] = {}
        for name in self._files.list_directory(self.topics_path):
            number = self.incarnation_of(name)
            if number >= 0:
                found[f"{self.topics_path}/{name}"] = None if name.endswith(_DELETED) else number
        return found

    @staticmethod
    def incarnation_of(name: str) -> int:
        """The incarnation that the name of a topic's directory tells; -1 if it is another's."""
        number = name.removesuffix(_DELETED).rpartition(".")[2]
        return int(number) if number.isascii() and number.isdigit() else -1
