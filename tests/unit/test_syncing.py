"""What makes files and directories durable, where `fsync` alone leaves them in the drive's cache."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kclient import syncing
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.spark.pipelines.folder import sync

FULL_FSYNC = 51


def directory(path: Path) -> None:
    Files().sync_directory(str(path), SyncPoint.TOPIC)


def file(path: Path) -> None:
    Files().store(str(path / "format.json"), b"{}", SyncPoint.FORMAT)


def archive(path: Path) -> None:
    sync(path)


@pytest.mark.parametrize("make_durable", [directory, file, archive])
def test_macos_has_the_drive_write_what_it_has(
    make_durable: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(syncing, "_FULL_FSYNC", FULL_FSYNC)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, call: calls.append(call))
    make_durable(tmp_path)
    assert calls == [FULL_FSYNC]


@pytest.mark.parametrize("make_durable", [syncing.sync_data, syncing.sync_all])
def test_where_a_file_system_knows_no_such_call_it_is_fsync(
    make_durable: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, call: int) -> None:
        raise OSError(number, os.strerror(number))

    synced: list[int] = []
    monkeypatch.setattr(syncing, "_FULL_FSYNC", FULL_FSYNC)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    number = errno.ENOTSUP
    make_durable(7)
    assert synced == [7]
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        make_durable(7)
    assert synced == [7], "fsync would succeed, and prove nothing"
