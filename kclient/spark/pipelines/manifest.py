"""What an archive remembers: numbered manifests, each one run's ranges and files.

A manifest is the commit of its run: where it stands (see `folder`), the run has happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from kclient.arguments import brief, shown
from kclient.errors import ConfigError
from kclient.spark.pipelines.failures import PipelineError
from kclient.spark.pipelines.layout import BY_DATE, layout_of

FORMAT = 3
"""2 knows the run's name and the topic ids of files, and holds positions of partitions that were empty. 3 knows the
layout, and what was deleted. Older ones are read."""
_OLDEST = 1
_WITHOUT_EMPTY = 1
"""The newest format that did not remember partitions that were empty."""
_TYPES = {"str": str, "int": int}
T = TypeVar("T", "ArchivedRange", "ArchivedFile")


class ArchiveError(PipelineError):
    """The archive could not be written or read, its folder is in use, or its state is none to go on from."""


@dataclass(frozen=True)
class ArchivedRange:
    """The offsets of one partition that a run archived: from `start` to before `end`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Whose offsets they are: topic, its id, and partition."""
        return self.topic, self.topic_id, self.partition


@dataclass(frozen=True)
class ArchivedFile:
    """One Parquet file: its path below the destination, its rows, its size in bytes, and whose records it holds."""

    path: str
    rows: int
    size: int
    topic_id: str = ""


@dataclass(frozen=True)
class Manifest:
    """One committed run."""

    number: int
    run: str
    """The run's own name, which no other run has."""
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...]
    positions: tuple[ArchivedRange, ...]
    """For every partition ever seen, where the next run goes on: at `end`."""
    lost: tuple[ArchivedRange, ...] = ()
    """What was gone before it could be archived."""
    incomplete: tuple[str, ...] | None = ()
    """The ids of topics whose partitions are not all in `positions`: only the first format, which left out those that
    were empty, has seen them. None where the file does not tell."""
    layout: tuple[str, ...] = BY_DATE.names
    """What the folders are made of, in this run and in all."""
    expired: tuple[ArchivedRange, ...] = ()
    """Within these offsets records were deleted from the archive, by this run and all before it; some may be there."""
    deleted: tuple[str, ...] = ()
    """The files that this run deletes."""
    format: int = FORMAT

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: bytes, path: Path) -> Manifest:
        """Reads the content of the file `path`.

        Raises:
            ArchiveError: it is damaged, or a newer release wrote it.
        """
        try:
            data = json.loads(text)
            _check(data, format="int")
            if not _OLDEST <= data["format"] <= FORMAT:
                raise ArchiveError(
                    f"{path} has format {data['format']}, and this release knows {FORMAT}; install a newer kclient"
                )
            data = {
                "run": "",
                "lost": [],
                "incomplete": None,
                "layout": BY_DATE.names,
                "expired": [],
                "deleted": [],
                **data,
            }
            _check(data, number="int", run="str")
            positions = _all(ArchivedRange, data["positions"])
            return cls(
                number=data["number"],
                run=data["run"],
                ranges=_all(ArchivedRange, data["ranges"]),
                files=_all(ArchivedFile, data["files"]),
                positions=positions,
                lost=_all(ArchivedRange, data["lost"]),
                incomplete=_ids_of(positions) if data["format"] <= _WITHOUT_EMPTY else _texts(data["incomplete"]),
                layout=layout_of(data["layout"]).names,
                expired=_all(ArchivedRange, data["expired"]),
                deleted=_texts(data["deleted"]) or (),
                format=data["format"],
            )
        except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            raise ArchiveError(
                f"{path} is not a manifest of an archive: {type(error).__name__}: {brief(str(error))}; restore it from "
                "a backup, or archive into an empty folder"
            ) from error

    def completed(self, earlier: Iterable[Manifest]) -> Manifest:
        """With `incomplete` found out, where the file does not tell, from earlier manifests, the newest first.

        Of a topic that a run has looked at since, a position has moved: the first format knew no empty ranges.
        """
        if self.incomplete is not None:
            return self
        told = next((each for each in earlier if each.incomplete is not None), None)
        before = () if told is None else told.positions
        moved = _ids_of(set(self.positions).symmetric_difference(before))
        left = () if told is None else told.incomplete or ()
        return replace(self, incomplete=tuple(sorted(set(left).difference(moved))))


def _ids_of(positions: Iterable[ArchivedRange]) -> tuple[str, ...]:
    return tuple(sorted({each.topic_id for each in positions}))


def _texts(items: Any) -> tuple[str, ...] | None:
    if items is None:
        return None
    if type(items) is not list or not all(type(item) is str for item in items):
        raise TypeError(f"a list of names is {shown(items)}")
    return tuple(items)


def _all(kind: type[T], items: Any) -> tuple[T, ...]:
    found = tuple(kind(**item) for item in items)
    types = {each.name: str(each.type) for each in fields(kind)}
    for each in found:
        _check(vars(each), **types)
    return found


def _check(data: Any, **types: str) -> None:
    """Raises `TypeError` or `KeyError` where a field is not of its type."""
    for name, kind in types.items():
        if type(data[name]) is not _TYPES[kind]:
            raise TypeError(f"{name} is {shown(data[name])}")
