"""What an archive remembers: numbered manifests, each one run's ranges and files, each committed atomically.

```
DESTINATION/
  topic=flights/date=2013-01-01/part-….parquet     the data, readable by anything that reads Parquet
  _kclient/lock                                    held by the run in progress
  _kclient/manifests/00000001.json                 a run that happened: this file is the commit
  _kclient/staging/00000002/…                      a run in progress, or one that died
```

A run fixes its ranges, writes below `staging`, and commits by renaming one manifest into place. Only then do
its files move to where they belong. A run that died before the commit left nothing but a staging folder, which
the next run deletes; one that died after it left moves to do, which the next run does first.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kclient.errors import KafkaError

FORMAT = 1


class ArchiveError(KafkaError):
    """The archive's folder is in use, or not in a state that this release can go on from."""


@dataclass(frozen=True)
class ArchivedRange:
    """The offsets of one partition that a run archived: from `start` to before `end`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class ArchivedFile:
    """One Parquet file: its path below the destination, its rows and its size in bytes."""

    path: str
    rows: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """One committed run. `positions` holds, for every partition ever archived, where the next run goes on."""

    number: int
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...]
    positions: tuple[ArchivedRange, ...]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> Manifest:
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ArchiveError(
                    f"{path} has format {data['format']}, and this release knows {FORMAT}; install a newer kclient"
                )
            return cls(
                number=data["number"],
                ranges=tuple(ArchivedRange(**item) for item in data["ranges"]),
                files=tuple(ArchivedFile(**item) for item in data["files"]),
                positions=tuple(ArchivedRange(**item) for item in data["positions"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{path} is no manifest of an archive: {error!r}") from error


class ArchiveFolder:
    """The folder of an archive on a local (or locally mounted) file system."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self._home = destination / "_kclient"
        self._manifests = self._home / "manifests"
        self._staging = self._home / "staging"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One run at a time; the system frees the lock when the process dies."""
        self._manifests.mkdir(parents=True, exist_ok=True)
        self._staging.mkdir(exist_ok=True)
        with (self._home / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise ArchiveError(
                    f"another run archives into {self.destination} (process {file.read().strip() or 'unknown'});"
                    " wait for it or stop it"
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def last(self) -> Manifest | None:
        """The newest committed manifest, if any run was ever committed."""
        paths = sorted(self._manifests.glob("[0-9]*.json"))
        return Manifest.from_json(paths[-1].read_text("utf-8"), paths[-1]) if paths else None

    def staging(self, number: int) -> Path:
        """Where the run of that number writes; it does not exist yet."""
        return self._staging / f"{number:08d}"

    def commit(self, manifest: Manifest) -> None:
        """Makes the run a fact: its files are forced to disk, then one rename puts the manifest in place."""
        staging = self.staging(manifest.number)
        folders = {staging}
        for file in manifest.files:
            _sync(staging / file.path)
            folders.update((staging / file.path).parents[: len(Path(file.path).parents)])
        for folder in folders:
            _sync(folder)
        _sync(self._staging)
        target = self._manifests / f"{manifest.number:08d}.json"
        temporary = target.with_suffix(".tmp")
        temporary.write_text(manifest.to_json(), "utf-8")
        _sync(temporary)
        temporary.rename(target)
        _sync(self._manifests)

    def publish(self, manifest: Manifest) -> None:
        """Moves the run's files to where they belong; what a dead run already moved is left as it is."""
        staging = self.staging(manifest.number)
        if not staging.exists():
            return
        folders = set()
        for file in manifest.files:
            source, target = staging / file.path, self.destination / file.path
            folders.add(target.parent)
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            elif not target.exists():
                raise ArchiveError(
                    f"{file.path} is neither in {staging} nor in {self.destination}: somebody deleted it;"
                    " restore it or archive into an empty folder"
                )
        for folder in folders | {folder.parent for folder in folders} | {self.destination}:
            _sync(folder)
        shutil.rmtree(staging)

    def discard_uncommitted(self, last: Manifest | None) -> None:
        """Deletes what runs that died before their commit left behind."""
        committed = last.number if last else 0
        for folder in self._staging.iterdir():
            if int(folder.name) > committed:
                shutil.rmtree(folder)
        for temporary in self._manifests.glob("*.tmp"):
            temporary.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
