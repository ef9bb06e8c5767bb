"""The example of a backend: what the contract of HTP cannot ask of it."""

from __future__ import annotations

import importlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kclient.htp.errors import StorageError
from tests.contract_run import ROOT


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "sqlite_backend"))
    return importlib.import_module("htp_sqlite.database")


def test_several_can_make_the_file_at_once(database, tmp_path: Path) -> None:
    several = 4
    together = threading.Barrier(several)

    def open_and_close(path: Path) -> None:
        together.wait(30)
        database.Database(str(path), "NORMAL").close()

    with ThreadPoolExecutor(several) as pool:
        for number in range(20):
            for opened in [pool.submit(open_and_close, tmp_path / str(number)) for _ in range(several)]:
                opened.result()


def test_a_file_that_another_one_keeps_is_not_waited_for_without_end(database, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.05)
    path = tmp_path / "store"
    keeper = sqlite3.connect(path, isolation_level=None)
    keeper.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="store cannot be opened: database is locked"):
        database.Database(str(path), "NORMAL")
    keeper.close()
