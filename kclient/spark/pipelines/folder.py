"""The folder of an archive: how runs are kept apart, committed and published.

```
DESTINATION/
  topic=flights/date=2013-01-01/part-….parquet     the data, readable by anything that reads Parquet (see `layout`)
  _kclient/lock                                    held by the run in progress
  _kclient/manifests/00000001.json                 a run that happened: this file is the commit
  _kclient/published                               the newest run whose files are all where they belong
  _kclient/staging/00000002-5f0c…/run.json         a run in progress, which holds this file's lock, or one that died
  _kclient/staging/00000002-5f0c…/topic=…/…        what it has written
```

A run fixes its ranges, writes below a staging folder of its own, and commits by putting one manifest into place, which
fails if another one is there. Only then do its files move to where they belong. A run that died before the commit left
nothing but a staging folder, which the next run deletes; one that died after it left moves to do, which the next run
does first. Files bear their run's number and name: where some are of a later run than all manifests, one is lost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kclient.spark.pipelines.folder_use import FolderInUseError, locked, try_lock, why_not_writable
from kclient.spark.pipelines.manifest import ArchiveError, Manifest
from kclient.syncing import sync_all

_MANIFEST = re.compile(r"(\d{8,})\.json")
_DATA = re.compile(r"part-\d+-\d+-\d+-((?:\d{8,}-)?[0-9a-f]{16})\.parquet")
"""What `parquet_files` calls its files, with the run's name behind; Spark's own are called otherwise."""
_RUN = re.compile(r"(\d{8,})-([0-9a-f]+)")
"""The full name of a run: its number, and what no other run has."""
_STAGING = re.compile(r"\d{8,}(-[0-9a-f]+)?")
_TEMPORARY = re.compile(r"\d{8,}(?:\.([0-9a-f]+))?\.tmp")
MARKER = "run.json"
_NAMED = 3
"""So many lost runs are named; others are counted."""


@dataclass(frozen=True)
class StagedRun:
    """The staging folder of one run, as the driver and the workers name it."""

    folder: Path
    run: str

    @property
    def name(self) -> str:
        """The run's number and its own name, which its files bear: whose manifest is missing is known by them."""
        return self.folder.name

    def check(self) -> None:
        """Raises `ArchiveError` where this process does not see what the driver has put into the folder."""
        try:
            found = json.loads((self.folder / MARKER).read_text("utf-8")).get("run")
        except (OSError, ValueError):
            found = None
        if found != self.run:
            raise ArchiveError(
                f"a worker on {socket.gethostname()} does not see the staging folder {self.folder} of the driver (or"
                " the run is over): driver and workers must share the archive's folder, under one path"
            )


class ArchiveFolder:
    """The folder of an archive on a local (or locally mounted) file system."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self._home = destination / "_kclient"
        self._manifests = self._home / "manifests"
        self._staging = self._home / "staging"
        self._published = self._home / "published"

    def check(self) -> None:
        """Whether it looks as if it could be written; nothing is made.

        Raises:
            ArchiveError: it is none, or may not be written.
        """
        what = f"the archive's folder {self.destination} cannot be used"
        with explained(what):
            reason = why_not_writable(self.destination)
        if reason is not None:
            raise ArchiveError(f"{what}: {reason}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One run at a time; the system frees the lock when the process dies.

        Raises:
            ArchiveError: another run is at work, or the folder cannot be written.
        """
        with explained(f"the archive's folder {self.destination} cannot be used"):
            self._manifests.mkdir(parents=True, exist_ok=True)
            self._staging.mkdir(exist_ok=True)
            try:
                file = locked(self._home / "lock")
            except FolderInUseError as error:
                raise ArchiveError(
                    f"another run archives into {self.destination} (process {error.process}); wait for it or stop it"
                ) from None
        with file:
            yield

    def last(self) -> Manifest | None:
        """The newest committed manifest, if any run was ever committed.

        Raises:
            ArchiveError: it cannot be read, is damaged, or a newer release wrote it; or those of later runs are
                gone, and what these archived would be archived again.
        """
        while True:
            found = self._manifest_paths()
            numbers = sorted(found, reverse=True)
            last = self._read(found[numbers[0]]) if numbers else None
            try:
                self._check_later(last)
            except ArchiveError:
                if max(self._manifest_paths(), default=0) == max(numbers, default=0):
                    raise
                continue  # nobody has to hold the lock to look: another run was committed meanwhile
            return last and last.completed(self._readable(found[number] for number in numbers[1:]))

    def _manifest_paths(self) -> dict[int, Path]:
        """By their numbers."""
        with explained("the manifests cannot be read"):
            # where nothing was ever archived there is none to look into, and a dry run makes none
            paths = list(self._manifests.iterdir()) if self._manifests.exists() else []
        return {int(match[1]): path for path in paths if (match := _MANIFEST.fullmatch(path.name))}

    def contents(self, *, whole: bool = True) -> tuple[Manifest, list[str], dict[tuple[str, str, int], int]]:
        """The newest manifest, the files that it and all before it have committed, and where archiving began.

        The files are paths below the destination. Of each partition the archive has taken all from the offset on that
        is told, as far as manifests are there.

        It takes no lock: files of a run that is at work meanwhile are left out.

        Args:
            whole: Whether all files have to be there; they are not where the last run has died before it moved them.

        Raises:
            ArchiveError: it is no archive, what is remembered is damaged, or files that a run has committed are not
                there.
        """
        while True:
            last, paths, begins, missing = self._contents()
            if not (missing and whole):
                return last, paths, begins
            if max(self._manifest_paths(), default=0) == last.number:
                raise ArchiveError(
                    f"{len(missing)} files that the manifests tell of are not in {self.destination}, such as"
                    f" {missing[0]}: where the last run was ended before it had moved its files, run kclient pipeline"
                    " archive once more; where they were deleted, restore them"
                )

    def _contents(self) -> tuple[Manifest, list[str], dict[tuple[str, str, int], int], list[str]]:
        with explained(f"the archive's folder {self.destination} cannot be read"):
            found = self._manifests.is_dir()
        if not found:
            raise ArchiveError(f"{self.destination} holds no archive: there is no folder {self._manifests}")
        last = self.last()
        if last is None:
            raise ArchiveError(f"{self.destination} holds no archive yet: no run was ever committed to it")
        with explained("the manifests cannot be read"):
            paths = [path for path in self._manifests.iterdir() if _MANIFEST.fullmatch(path.name)]
        manifests = [each for each in self._readable(paths) if each.number <= last.number]
        deleted = {path for each in manifests for path in each.deleted}
        told = {file.path for each in manifests for file in each.files} - deleted
        begins: dict[tuple[str, str, int], int] = {}
        for position in (position for each in manifests for position in each.positions):
            begins[position.key] = min(position.start, begins.get(position.key, position.start))
        with explained(f"the archive's folder {self.destination} cannot be read"):
            there = dict(_data_files(self.destination))
        others = {path for path, run in there.items() if _is_of(run, last)} - deleted
        return last, sorted(told | others), begins, sorted(told - there.keys())

    def _readable(self, paths: Iterable[Path]) -> Iterator[Manifest]:
        """Of former manifests, which need not be there, those that can be read."""
        for path in paths:
            with contextlib.suppress(ArchiveError):
                yield self._read(path)

    def _read(self, path: Path) -> Manifest:
        with explained(f"the manifest {path} cannot be read"):
            return Manifest.from_json(path.read_bytes(), path)

    def _check_later(self, last: Manifest | None) -> None:
        """Raises `ArchiveError` where later runs than `last` are known by their files or by the mark."""
        with explained(f"the archive's folder {self.destination} cannot be read"):
            left = {run for run in _runs_of_files(self.destination) if last is None or _is_later(run, last)}
        mark = self._last_published() or ""
        marked = {mark} if _is_later(mark, last) else set[str]()
        if left or marked:
            known = (
                "files that were archived then are there" if left else f"{self._published} tells of what it archived"
            )
            later = sorted(run for run in left | marked if _is_later(run, last))
            raise ArchiveError(
                f"{_manifests_of(later)} gone from {self._manifests}, and {known}: another run would archive the same"
                " records again; restore the manifests from a backup that is as new as the data, archive into an empty"
                f" folder, or delete {_files_of(later)}{f' and {self._published}' if marked else ''} to have these"
                " records archived anew"
            )

    @contextmanager
    def run(self, number: int) -> Iterator[StagedRun]:
        """A staging folder of its own for a run; what fails leaves none behind, unless it was committed."""
        name = uuid.uuid4().hex[:16]
        staged = StagedRun(self._staging / f"{number:08d}-{name}", name)
        with explained(f"the archive's folder {self.destination} cannot be written"):
            staged.folder.mkdir()
            marker = (staged.folder / MARKER).open("w", encoding="utf-8")
        with marker:
            with explained(f"the archive's folder {self.destination} cannot be written"):
                try_lock(marker)
                marker.write(json.dumps({"run": name, "host": socket.gethostname(), "process": os.getpid()}))
                marker.flush()
            try:
                yield staged
            except BaseException:  # Ctrl-C, too: what is staged is in nobody's way
                if not self._is_committed(number, name):
                    shutil.rmtree(staged.folder, ignore_errors=True)
                raise

    def _is_committed(self, number: int, run: str) -> bool:
        try:
            path = self._manifest_path(number)
            return Manifest.from_json(path.read_bytes(), path).run == run
        except FileNotFoundError:
            return False
        except (OSError, ArchiveError):
            return True  # in doubt nothing is deleted: the next run looks again

    def commit(self, manifest: Manifest) -> None:
        """Makes the run a fact: its folders are forced to disk, then the manifest is put into place.

        Raises:
            ArchiveError: another run was committed meanwhile, or the file system refuses.
        """
        with explained("the run could not be committed, and nothing was archived"):
            staging = self._staging_of(manifest)
            folders = {staging}
            for file in manifest.files:
                folders.update((staging / file.path).parents[: len(Path(file.path).parents)])
            for folder in folders:
                sync(folder)
            sync(self._staging)
            target = self._manifest_path(manifest.number)
            temporary = target.with_suffix(f".{manifest.run}.tmp")
            try:
                _write(temporary, manifest.to_json())
                _place(temporary, target)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
        with explained("the manifest could not be forced to disk; run again: it looks what is there, and goes on"):
            sync(self._manifests)

    def publish(self, manifest: Manifest) -> None:
        """Moves the run's files to where they belong, and deletes what it says; what a dead run did stays done.

        Once that is on disk, a mark says so: a run without it has files to move, or is missing some.

        Raises:
            ArchiveError: a file is missing, or cannot be moved; the next run tries again.
        """
        staging = self._staging_of(manifest)
        with explained("the run is committed, but its files could not be moved; the next run goes on with that"):
            if self._last_published() == staging.name:
                _remove(staging)
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
            above = {each for folder in folders for each in folder.parents if self.destination in each.parents}
            for folder in folders | above | {self.destination}:
                sync(folder)
            self._delete(manifest.deleted)
            self._mark_published(staging.name)
            _remove(staging)

    def _delete(self, paths: Sequence[str]) -> None:
        """Deletes files, and folders that have nothing else in them."""
        folders = set[Path]()
        for path in paths:
            target = self.destination / path
            target.unlink(missing_ok=True)
            folders.update(each for each in target.parents if self.destination in each.parents)
        for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):  # the innermost first
            with contextlib.suppress(OSError):  # there is something else in it
                folder.rmdir()
        for folder in {each.parent for each in folders} | folders:
            with contextlib.suppress(FileNotFoundError):
                sync(folder)

    def _last_published(self) -> str | None:
        """The name of the newest run whose files are all in place; None where that is not known."""
        with explained(f"the mark {self._published} cannot be read"):
            try:
                return self._published.read_bytes().decode(errors="replace")
            except FileNotFoundError:  # no run was yet, or an older release wrote the folder
                return None

    def _mark_published(self, run: str) -> None:
        temporary = self._home / "published.tmp"
        _write(temporary, run)
        temporary.rename(self._published)
        sync(self._home)

    def discard_dead(self) -> None:
        """Deletes what runs left behind that died before their commit; call it when the last one is published.

        What is no run's, such as a desktop's files, is left alone, and so is a run that lives in spite of the lock.
        """
        with explained(f"the archive's folder {self.destination} cannot be cleaned"):
            alive = set()
            for folder in self._staging.iterdir():
                if not (_STAGING.fullmatch(folder.name) and folder.is_dir()):
                    continue
                if _is_alive(folder):
                    alive.add(folder.name.partition("-")[2])
                else:
                    shutil.rmtree(folder, ignore_errors=True)  # a task that outlived its driver may still write
            for temporary in self._manifests.iterdir():
                match = _TEMPORARY.fullmatch(temporary.name)
                if match and match[1] not in alive and not temporary.is_dir():
                    temporary.unlink(missing_ok=True)

    def _manifest_path(self, number: int) -> Path:
        return self._manifests / f"{number:08d}.json"

    def _staging_of(self, manifest: Manifest) -> Path:
        name = f"{manifest.number:08d}-{manifest.run}" if manifest.run else f"{manifest.number:08d}"
        return self._staging / name


@contextmanager
def explained(what: str) -> Iterator[None]:
    """What the file system refuses becomes an `ArchiveError` that says what was tried."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise ArchiveError(f"{what}: {error.strerror or error}{where}") from error


def _runs_of_files(destination: Path) -> set[str]:
    """Whose files there are."""
    return {run for _, run in _data_files(destination)}


def _data_files(destination: Path) -> Iterator[tuple[str, str]]:
    """The paths of files, and whose they are, by one listing of the folders of topics and times."""
    folders = [path.name for path in destination.glob("topic=*/")]
    while folders:
        below = folders.pop()
        # others may delete what they read
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(destination / below) as entries:
            for entry in entries:
                if match := _DATA.fullmatch(entry.name):
                    yield f"{below}/{entry.name}", match[1]
                elif "=" in entry.name and entry.is_dir():
                    folders.append(f"{below}/{entry.name}")


def _is_of(run: str, last: Manifest) -> bool:
    """Whether files of this run are part of the archive: it came before the last one, or is it."""
    name = _RUN.fullmatch(run)
    return name is None or int(name[1]) < last.number or name[2] == last.run


def _is_later(run: str, last: Manifest | None) -> bool:
    """Whether it came after the last run whose manifest there is, or in its place."""
    name = _RUN.fullmatch(run)
    if name is None:
        return False
    if last is None or int(name[1]) != last.number:
        return int(name[1]) > (last.number if last else 0)
    return name[2] != last.run


def _manifests_of(runs: Sequence[str]) -> str:
    if not runs:
        return "the manifests are"
    names = [f"{number}.json (run {own})" for number, _, own in (run.partition("-") for run in runs)]
    return f"the manifest {names[0]} is" if len(runs) == 1 else f"the manifests {_some(names)} are"


def _files_of(runs: Sequence[str]) -> str:
    if not runs:
        return "its Parquet files"
    return f"the files {_some([f'part-*-{run}.parquet' for run in runs])}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more of later runs" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_alive(folder: Path) -> bool:
    try:
        with (folder / MARKER).open("r+", encoding="utf-8") as marker:
            return not try_lock(marker)
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    sync(path)


def _place(temporary: Path, target: Path) -> None:
    """Renames, but never over a file that is there: two runs that got past the lock must not both commit."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise ArchiveError(f"another run was committed meanwhile as {target.name}; nothing was archived") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if target.exists():  # no hard links here
            raise ArchiveError(f"another run was committed meanwhile as {target.name}; nothing was archived") from None
        temporary.rename(target)


def _remove(staging: Path) -> None:
    """Deletes an empty staging folder, and what losing attempts of tasks left in it."""
    shutil.rmtree(staging, ignore_errors=True)


def sync(path: Path) -> None:
    """Force a file, or what a folder holds, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)
