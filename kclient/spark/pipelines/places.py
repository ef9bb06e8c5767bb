"""Where an archive lies: a folder of a file system, as people name it."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

from kclient.arguments import brief, shown
from kclient.errors import ConfigError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]")
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")
_STORES = ("s3", "s3a", "s3n", "gs", "hdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "dbfs", "viewfs", "http", "https")


def local_folder(place: str | Path, what: str = "the archive's destination") -> Path:
    """The folder that a path or a `file:` URL names, absolute.

    Args:
        place: The path or URL.
        what: What it is, as errors call it.

    Raises:
        ConfigError: it names a place that is not a folder of this machine's file systems.
    """
    if not isinstance(place, str | PurePath):
        raise ConfigError(f"{what} is a path as text or a pathlib.Path, not {shown(place)}")
    text = str(place)
    if not text.strip():
        raise ConfigError(f"{what} is empty: name a folder, which may be new")
    if "\0" in text:
        raise ConfigError(f"{what} holds a zero byte")
    if text.startswith("file:"):
        return _folder_of_url(text)
    scheme = text.partition(":")[0].lower()
    if _URL.match(text) or (":" in text and scheme in _STORES) or _DRIVE.match(text):
        raise ConfigError(
            f"{what} cannot be {brief(text)}: runs are made exact by locks, hard links and renames, so"
            " it takes a folder on a local or mounted file system that driver and workers share, as a path or a file:"
            f" URL (a local folder of that name is ./{brief(text)})"
        )
    return Path(text).absolute()


def _folder_of_url(text: str) -> Path:
    url = urlsplit(text)
    path = unquote(text.removeprefix("file:").removeprefix("//").removeprefix(url.netloc))
    if url.netloc not in ("", "localhost") or not path.startswith("/"):
        raise ConfigError(f"{brief(text)} names no folder of this machine: a file: URL is file:///folder")
    return Path(path)
