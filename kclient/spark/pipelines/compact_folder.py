"""The folder of a compacted topic: tables, one for each run, of which `current` names the one that counts.

```
DESTINATION/
  current -> tables/00000002-5f0c…          replaced by a rename: readers see the one table or the other
  tables/00000002-5f0c…/part-….parquet      the table: the latest record of each key
  tables/00000002-5f0c…/_state/…            what later runs need and readers of Parquet pass over
  tables/00000002-5f0c…/_compacted.json     which topic, and where the next run goes on
  tables/00000001-…                         the former table, for those who still read it
  _kclient/lock, _kclient/staging/…         the run in progress
```

A table is whole and on disk before the link names it. So where the link is lost, the newest whole table is the one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kclient.spark.pipelines.failures import CompactError
from kclient.spark.pipelines.folder import sync
from kclient.spark.pipelines.folder_use import FolderInUseError, locked, why_not_writable

FORMAT = 1
"""Of `_compacted.json`; a newer one is refused."""
_CURRENT = "current"
STATE = "_state"
_ABOUT = "_compacted.json"
_TABLE = re.compile(r"(\d{8,})-[0-9a-f]{16}")
_STAGED = re.compile(r"[0-9a-f]{16}")
"""What runs call their folders; others are none of theirs."""


@dataclass(frozen=True)
class CompactedFile:
    """A Parquet file of a table: its path below the table's folder, its rows, and its size in bytes."""

    path: str
    rows: int
    size: int


def is_seen(file: CompactedFile) -> bool:
    """Whether readers see it; what is below a folder that begins with an underscore they pass over."""
    return not file.path.startswith(STATE)


@dataclass(frozen=True)
class CompactedTable:
    """A table, as it tells of itself.

    Attributes:
        number: of the run that made it, from 1 on.
        run: the run's own name.
        topic: whose records they are.
        topic_id: which topic of that name.
        headers: whether there is a column for headers.
        keep_tombstones: whether keys whose latest record has no value are in the table.
        positions: by partition, where the next run goes on.
        files: those of the table, and of its state.
        rows: how many keys are in the table.
        tombstones: how many keys have a latest record without a value.
        split_keys: how many keys have records in several partitions.
        null_keys: how many records without a key all runs have left out.
    """

    number: int
    run: str
    topic: str
    topic_id: str
    headers: bool
    keep_tombstones: bool
    positions: Mapping[int, int]
    files: tuple[CompactedFile, ...]
    rows: int
    tombstones: int
    split_keys: int
    null_keys: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.number:08d}-{self.run}"

    @property
    def size(self) -> int:
        """Bytes of the files that readers see."""
        return sum(file.size for file in self.files if is_seen(file))

    def to_json(self) -> str:
        """The text of `_compacted.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> CompactedTable:
        """What the file tells.

        Raises:
            CompactError: it is damaged, or a newer release wrote it.
        """
        try:
            told = json.loads(path.read_bytes())
            if told.pop("format") > FORMAT:
                raise CompactError(f"{path} was written by a newer kclient: go on with that")
            positions = {int(number): int(offset) for number, offset in told.pop("positions").items()}
            files = tuple(CompactedFile(**each) for each in told.pop("files"))
            return cls(**told, positions=positions, files=files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CompactError(
                f"{path} does not tell what the table is ({error}): restore it, or compact into an empty folder"
            ) from error


@dataclass(frozen=True)
class StagedTable:
    """Where the tasks of a run write."""

    folder: Path
    run: str

    def check(self) -> None:
        """Raises `CompactError` where this process does not see the folder."""
        if not self.folder.is_dir():
            raise CompactError(
                f"a worker on {socket.gethostname()} does not see the folder {self.folder} of the driver (or the run is"
                " over): driver and workers must share the table's folder, under one path"
            )


class CompactFolder:
    """A folder of tables on a file system that driver and workers share."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self._home = destination / "_kclient"
        self._staging = self._home / "staging"
        self._tables = destination / "tables"
        self._current = destination / _CURRENT

    def check(self) -> None:
        """Whether it looks as if it could be written; nothing is made.

        Raises:
            CompactError: it is none, may not be written, or is an archive's.
        """
        what = f"the folder {self.destination} cannot be used"
        with explained(what):
            reason = why_not_writable(self.destination)
        if reason is not None:
            raise CompactError(f"{what}: {reason}")
        self._refuse_archive()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One run at a time; the system frees the lock when the process dies.

        Raises:
            CompactError: another run is at work, or the folder cannot be written, or is an archive's.
        """
        with explained(f"the folder {self.destination} cannot be used"):
            self._refuse_archive()
            for folder in (self._staging, self._tables):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                file = locked(self._home / "lock")
            except FolderInUseError as error:
                raise CompactError(
                    f"another run compacts into {self.destination} (process {error.process}); wait for it or stop it"
                ) from None
        with file:
            yield

    def _refuse_archive(self) -> None:
        if (self._home / "manifests").exists():
            raise CompactError(f"{self.destination} is an archive's folder: a table takes one of its own")

    def last(self) -> CompactedTable | None:
        """The table that counts, if any run was ever through.

        Raises:
            CompactError: it is damaged, or something else lies in its place.
        """
        with explained(f"the folder {self.destination} cannot be read"):
            self._refuse_archive()
            if not self.is_linked():
                if self._current.exists():
                    raise CompactError(f"{self._current} is not the link of a compacted topic: choose an empty folder")
                return self._newest_whole()
            table = CompactedTable.read(self._current / _ABOUT)
            self._check_there(table)
            return table

    def is_linked(self) -> bool:
        """Whether `current` names a table."""
        return self._current.is_symlink()

    def _newest_whole(self) -> CompactedTable | None:
        """Copies leave links out at times; then the newest table that is whole is the one that counted."""
        tables = self._own_tables()
        for folder in sorted(tables, key=lambda each: tables[each], reverse=True):
            try:
                found = CompactedTable.read(folder / _ABOUT)
                self._check_there(found)
            except CompactError:
                continue  # the run that made it died
            if found.name == folder.name:
                return found
        if max(tables.values(), default=0) > 1:
            raise CompactError(
                f"{self._current} names no table, and of those in {self._tables} none is whole: restore them, or"
                " compact into an empty folder"
            )
        return None  # the first run died

    def _own_tables(self) -> dict[Path, int]:
        """The tables that runs have made, with their numbers."""
        paths = list(self._tables.iterdir()) if self._tables.is_dir() else []
        return {path: int(match[1]) for path in paths if (match := _TABLE.fullmatch(path.name))}

    def _check_there(self, table: CompactedTable) -> None:
        for file in table.files:
            path = self.table_of(table) / file.path
            try:
                size = path.stat().st_size
            except OSError as error:
                raise CompactError(
                    f"{path} of the table is gone ({error.strerror}): restore it, or compact into an empty folder"
                ) from error
            if size != file.size:
                raise CompactError(
                    f"{path} of the table has {size} bytes, and {file.size} were written: restore it, or compact into"
                    " an empty folder"
                )

    def recover(self) -> CompactedTable | None:
        """The table that counts, linked; what runs left that died is deleted. Call it with the lock.

        Raises:
            CompactError: as `last`; or the folder cannot be written.
        """
        last = self.last()
        if last is not None and not self.is_linked():
            with explained(f"the link {self._current} could not be made again"):
                self._link(last)
        self.discard_dead(last)
        return last

    def table_of(self, table: CompactedTable) -> Path:
        """A table's folder."""
        return self._tables / table.name

    def discard_dead(self, last: CompactedTable | None) -> None:
        """Delete what runs left that died, and tables before the last one's. Call it with the lock."""
        with explained(f"the folder {self.destination} cannot be cleaned"):
            for folder in self._staging.iterdir():
                if _STAGED.fullmatch(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
            for folder, number in self._own_tables().items():
                if last is None or (folder.name != last.name and number != last.number - 1):
                    shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def run(self) -> Iterator[StagedTable]:
        """A folder of a run's own, which goes with it."""
        name = uuid.uuid4().hex[:16]
        staged = StagedTable(self._staging / name, name)
        with explained(f"the folder {self.destination} cannot be written"):
            (staged.folder / STATE).mkdir(parents=True)
        try:
            yield staged
        finally:
            shutil.rmtree(staged.folder, ignore_errors=True)

    def commit(self, staged: StagedTable, table: CompactedTable) -> Path:
        """Make it the table that counts: all or nothing of it is seen.

        Raises:
            CompactError: a file is not what was written, or the file system refuses.
        """
        target = self.table_of(table)
        _check(staged.folder, table.files)
        with explained("the table could not be put into place; the former one is left"):
            (target / STATE).mkdir(parents=True)
            for file in table.files:  # what attempts that failed have left stays behind
                (staged.folder / file.path).rename(target / file.path)
            about = target / _ABOUT
            about.write_text(table.to_json(), "utf-8")
            for path in (about, target / STATE, target, self._tables):
                sync(path)
            self._link(table)
        with explained("the new table is in place, and could not be forced to disk; run again"):
            sync(self.destination)
        return target

    def _link(self, table: CompactedTable) -> None:
        link = self._home / "current.tmp"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("tables") / table.name)
        link.rename(self._current)


def _check(folder: Path, files: Iterable[CompactedFile]) -> None:
    """Whether this process sees what tasks have written."""
    from pyarrow import ArrowException, parquet

    for file in files:
        path = folder / file.path
        try:
            found = path.stat().st_size, parquet.read_metadata(path).num_rows
        except (OSError, ArrowException) as error:
            raise CompactError(
                f"{path} is not there as a task has written it ({error}): driver and workers must share the table's"
                " folder; the former table is left"
            ) from error
        if found != (file.size, file.rows):
            raise CompactError(f"{path} is not what a task has written; the former table is left, run again")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """What the file system refuses becomes a `CompactError`."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise CompactError(f"{what}: {error.strerror or error}{where}") from error


def compacted_table(destination: str | os.PathLike[str]) -> Path:
    """The folder of the table that counts, to read with anything that reads Parquet.

    The next run leaves it there, the one after that deletes it.

    Args:
        destination: the folder that `compact` was given.

    Raises:
        CompactError: no run was ever through there, or its table is gone.
    """
    link = Path(destination) / _CURRENT
    if not link.is_symlink():
        raise CompactError(f"{destination} holds no compacted topic: run kclient pipeline compact first")
    found = link.resolve()
    if not found.is_dir():
        raise CompactError(f"{link} names a table that is gone: {found}; restore it, or compact into an empty folder")
    return found
