"""What an archive remembers: numbered manifests, each one run's ranges and files.

A manifest is the commit of its run: where it stands (see `folder`), the run has happened.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kclient.errors import KafkaError

FORMAT = 2
"""2 knows the run's name and the topic ids of files, and holds positions of partitions that were empty. 1 is read."""
_OLDEST = 1


class ArchiveError(KafkaError):
    """The archive could not be written, its folder is in use, or is in no state that this release can go on from."""


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
    format: int = FORMAT

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path) -> Manifest:
        """Reads the text of the file `path`.

        Raises:
            ArchiveError: it is damaged, or a newer release wrote it.
        """
        try:
            data = json.loads(text)
            if not _OLDEST <= data["format"] <= FORMAT:
                raise ArchiveError(
                    f"{path} has format {data['format']}, and this release knows {FORMAT}; install a newer kclient"
                )
            return cls(
                number=data["number"],
                run=data.get("run", ""),
                ranges=tuple(ArchivedRange(**item) for item in data["ranges"]),
                files=tuple(ArchivedFile(**item) for item in data["files"]),
                positions=tuple(ArchivedRange(**item) for item in data["positions"]),
                lost=tuple(ArchivedRange(**item) for item in data.get("lost", ())),
                format=data["format"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{path} is no manifest of an archive: {error!r}") from error
