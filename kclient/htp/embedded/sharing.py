"""The lock of a shard as those take it who only look: several at once, and nobody who would write meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.embedded.directory import FORMAT
from kclient.htp.embedded.manifest import check_is_data_directory
from kclient.htp.embedded.processes import Processes
from kclient.htp.embedded.shard import shard_number
from kclient.htp.errors import FormatVersionError, LockedError
from kclient.htp.rows import parse_object, whole


def check_data_directory(path: str) -> int:
    """The format of a data directory; nothing is changed.

    Raises:
        FormatVersionError: It is none, its format is not told, or a newer version's.
    """
    check_is_data_directory(path)
    try:
        version = whole(parse_object(Path(path, "format.json").read_bytes())["format"], 1)
    except (ValueError, KeyError) as raised:
        raise FormatVersionError(f"{path}/format.json is damaged: restore it from a backup ({raised})") from raised
    if version > FORMAT:
        raise FormatVersionError(
            f"{path} is written in format {version}; this version of kclient knows formats up to {FORMAT}: "
            "use a newer one (pip install --upgrade htp-kclient)"
        )
    return version


def shards_of(path: str) -> list[str]:
    """The names of the shards of a data directory, sorted."""
    return sorted(each.name for each in Path(path).iterdir() if shard_number(each.name) is not None)


@contextmanager
def locks_shared(path: str) -> Iterator[None]:
    """Let nobody write to a data directory meanwhile.

    Raises:
        LockedError: Somebody has it open.
        OSError: A lock cannot be opened.
    """
    with ExitStack() as opened:
        for shard in shards_of(path):
            try:
                fd = os.open(f"{path}/{shard}/lock", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # a copy may lack it
                continue
            opened.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = os.read(fd, 100).decode(errors="replace").strip()
                owner = int(text) if text.isdigit() else None
                who = "another process" if owner is None else f"process {owner}"
                raise LockedError(
                    f"{path}/{shard} is in use by {who}: stop it there, or look at a backup", owner=owner
                ) from None
        for owner in Processes(f"{path}/{FIRST_BROKER}").others().values():
            who = f"process {owner}" if owner else "another process"
            raise LockedError(f"{path} is in use by {who}: stop it there, or look at a backup", owner=owner)
        yield
