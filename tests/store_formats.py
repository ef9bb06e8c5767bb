"""Data directories as earlier versions wrote them: `tests/unit/cli/formats/format_N.tar.gz`, and what is in each.

For whoever raises the format: before that, `python -m tests.store_formats` with the version that still writes the older
one. (With a version that is checked out elsewhere: its directory as PYTHONPATH, and this file as the program.)
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import anyio

import kclient
from kclient.htp.embedded.directory import FORMAT

FOLDER = Path(__file__).parent / "unit" / "cli" / "formats"
VALUES = [b"%d" % number * (300_000 if number < 8 else 50) for number in range(60)]
"""Of the topic `orders`, in turns in both of its partitions; some come in batches that are compressed."""
COMMITTED = 7
"""The offset that the group `readers` has committed in partition 0."""


def unpack(number: int, folder: Path) -> Path:
    """The data directory of a format, made in a folder; of today's, which nobody need have kept, a new one."""
    kept, data = FOLDER / f"format_{number}.tar.gz", folder / "data"
    if number == FORMAT and not kept.exists():
        anyio.run(write, data)
    else:
        with tarfile.open(kept) as archive:
            archive.extractall(folder, filter="data")
    return data


async def write(directory: Path) -> None:
    """Topics in several segments, one of them deleted again, settings, and a committed offset."""
    address = f"embedded:{directory}"
    async with kclient.Gateway(htp=address, listen="127.0.0.1:0") as gateway:
        async with kclient.Admin(bootstrap_servers=gateway.bootstrap) as admin:
            await admin.create_topics(
                [
                    kclient.NewTopic("orders", 2, 1, configs={"segment.bytes": "1048576", "retention.ms": "-1"}),
                    kclient.NewTopic("gone", 1, 1),
                    kclient.NewTopic("empty", 1, 1),
                ]
            )
        for part, compression in enumerate(["none", "gzip", "zstd"]):
            async with kclient.Producer(
                bootstrap_servers=gateway.bootstrap, compression_type=compression, linger_ms=0
            ) as producer:
                for number in range(part * 20, part * 20 + 20):
                    await (await producer.send("orders", value=VALUES[number], partition=number % 2, timestamp=1000))
                await (await producer.send("gone", value=b"x"))
        async with kclient.Admin(bootstrap_servers=gateway.bootstrap) as admin:
            await admin.delete_topics(["gone"])
        async with kclient.Consumer(
            bootstrap_servers=gateway.bootstrap, group_id="readers", enable_auto_commit=False
        ) as consumer:
            consumer.assign([kclient.TopicPartition("orders", 0)])
            await consumer.commit({kclient.TopicPartition("orders", 0): kclient.OffsetAndMetadata(COMMITTED)})


def main() -> None:
    """Write the archive into the folder of the others, or into the folder that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary, "data")
        anyio.run(write, data)
        for path in (data / "brk-0" / "lock", *data.glob("gateway-*.sock*")):
            path.unlink(missing_ok=True)
        with tarfile.open(folder / f"format_{FORMAT}.tar.gz", "w:gz") as archive:
            archive.add(data, "data")


if __name__ == "__main__":
    main()
