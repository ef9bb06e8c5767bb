"""What databases of embedded stores share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.sql.compiler import Compiled

from kclient.htp import Topic, open_store
from kclient.htp.embedded.engines import sqlite_engine

pytestmark = pytest.mark.anyio


async def use(path: Path) -> None:
    async with open_store(f"embedded:{path}") as store:
        manager = store.manager
        await manager.create_domain("d")
        await manager.create_topic(Topic("d", "t"))
        await manager.commit({"a": b"1", "b": b"2"})
        await manager.commit({"a": b"3"}, {"a": 1})
        assert (await manager.get(["a"]))["a"].value == b"3"
        assert list(await manager.scan("", limit=10)) == ["a", "b"]
        lease = await manager.acquire("lease", "me", 60.0)
        await manager.release(lease)


async def test_statements_are_compiled_for_the_first_store_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = 0
    init = Compiled.__init__

    def counted(self: Compiled, *args: Any, **options: Any) -> None:
        nonlocal compiled
        compiled += 1
        init(self, *args, **options)

    monkeypatch.setattr(Compiled, "__init__", counted)
    await use(tmp_path / "first")
    before = compiled
    await use(tmp_path / "second")
    assert compiled == before


def test_each_path_is_a_database_of_its_own(tmp_path: Path) -> None:
    """Whatever is in its name."""
    for name in ("a", "b", "c?d=e", "%41", "ü #"):
        engine = sqlite_engine(str(tmp_path / name))
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE made (here)")
        engine.dispose()
        assert (tmp_path / name).exists()
