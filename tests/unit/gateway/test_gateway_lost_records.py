"""Records at the end of a partition that the store has lost: nobody waits for them, and no offset is given again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gateway_wire import batch_of, running

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_the_log_ends_where_the_records_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("topic")
        for number in range(20):
            await wire.produce("topic", batch_of(b"%02d" % number))
    (file,) = data.glob("brk-*/topics/*/*.log")
    os.truncate(file, file.stat().st_size // 2)
    for _ in range(2):
        async with running(f"embedded:{data}") as (_, wire):
            assert (await wire.offset("topic", -1)).offset == 10
            for offset in (10, 15, 20):
                answer = await wire.fetch("topic", offset)
                assert (answer.error_code, answer.high_watermark, bytes(answer.records or b"")) == (0, 10, b"")
            assert await wire.values("topic") == [b"%02d" % number for number in range(10)]
    async with running(f"embedded:{data}") as (_, wire):
        assert (await wire.produce("topic", batch_of(b"new"))).base_offset == 20
        assert (await wire.offset("topic", -1)).offset == 21
        assert await wire.values("topic") == [*(b"%02d" % number for number in range(10)), b"new"]
        assert await wire.values("topic", 15) == [b"new"]
