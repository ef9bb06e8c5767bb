"""What a backup holds: the file `manifest.json` in it, which is written last and makes it one.

TO/manifest.json   every file with length and CRC-32C, every directory, and what they were taken of
TO/data/           the data directory; `kclient store verify TO/data` reads it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from crc32c import crc32c

from kclient.htp.embedded.directory import is_data_directory
from kclient.htp.errors import FormatVersionError, StorageError
from kclient.htp.rows import dump, parse_object, string, whole

MANIFEST: Final = "manifest.json"
DATA: Final = "data"
FORMAT: Final = 1
"""Of the manifest. That of the data is another number."""
GREATEST_MS: Final = 250_000_000_000_000
"""No file was written later (in the year 9892), nor before 0: what clocks have said beyond is brought within, since
neither all file systems nor calendars have more."""
_WHAT: Final = "backup of a data directory of kclient's embedded HTP"


def check_is_data_directory(path: str) -> None:
    """Raises `FormatVersionError` for a directory that holds no data, and says so of a backup."""
    if is_data_directory(path):
        return
    why = "it has no format.json"
    if Path(path, MANIFEST).is_file() and is_data_directory(f"{path}/{DATA}"):
        why = (
            f"it is a backup. Name {path}/{DATA} to look into it, or make a data directory of it: kclient store restore"
        )
    raise FormatVersionError(f"{path} is not a data directory of kclient: {why}")


class BackedUpFile(NamedTuple):
    """A file of a backup."""

    path: str
    """Below the data directory, with `/` between the names."""
    length: int
    crc: int
    """CRC-32C of the content."""
    modified_ms: int
    """When the original was written last, milliseconds since the epoch: retention may go by it."""


@dataclass(slots=True)
class BackupManifest:
    """What a backup holds."""

    data_format: int
    """The format of the data directory."""
    taken_ms: int
    """When it was the state of the store, milliseconds since the epoch."""
    directories: list[str] = field(default_factory=list)
    """Below the data directory, those before that are in them."""
    files: list[BackedUpFile] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.length for file in self.files)

    def encode(self) -> bytes:
        """The content of the file: JSON, with a checksum of its own."""
        fields = self._fields()
        return dump({**fields, "checksum": crc32c(dump(fields))}) + b"\n"

    def _fields(self) -> dict[str, object]:
        return {
            "what": _WHAT,
            "format": FORMAT,
            "data_format": self.data_format,
            "taken_ms": self.taken_ms,
            "directories": self.directories,
            "files": [list(file) for file in self.files],
        }

    @classmethod
    def decode(cls, content: bytes) -> BackupManifest:
        """Read the content of the file.

        Raises:
            ValueError: It is damaged, or no manifest.
            FormatVersionError: A newer version wrote it.
        """
        fields = parse_object(content)
        try:
            if fields["what"] != _WHAT:
                raise ValueError("it is not the manifest of a backup")
            if whole(fields["format"], 1) > FORMAT:
                raise FormatVersionError(
                    f"it has format {fields['format']}, and this version of kclient reads {FORMAT}: use a newer one "
                    "(pip install --upgrade htp-kclient)"
                )
            manifest = cls(
                whole(fields["data_format"], 1),
                whole(fields["taken_ms"], 0, GREATEST_MS),
                [_path(each) for each in fields["directories"]],
                [BackedUpFile(_path(path), whole(length), whole(crc), whole(modified, 0, GREATEST_MS))
                 for path, length, crc, modified in fields["files"]],
            )  # fmt: skip
            checksum = fields["checksum"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or wrong: {error}") from error
        if checksum != crc32c(dump(manifest._fields())):
            raise ValueError("its checksum is that of something else")
        return manifest


def read_manifest(backup: str) -> BackupManifest:
    """The manifest of a backup.

    Raises:
        FormatVersionError: It is no backup, one that was cut off, or one of a newer version.
        StorageError: The manifest is damaged.
    """
    path = Path(backup, MANIFEST)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FormatVersionError(
            f"{backup} is not a backup: it has no {MANIFEST}, which is written last. If a backup was cut off there, "
            "remove what it has left"
        ) from None
    try:
        return BackupManifest.decode(content)
    except FormatVersionError as error:
        raise FormatVersionError(f"{path}: {error}") from None
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}): use another backup") from error


def _path(value: object) -> str:
    """A path that stays below the data directory."""
    path = PurePosixPath(string(value))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(path):
        raise ValueError(f"{value!r} is not a path of a backup")
    return str(path)
