"""The first `poll_arrow` of a process imports pyarrow, which takes long, in a thread: the event loop goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from importlib.abc import MetaPathFinder

class Noting(MetaPathFinder):
    threads = []
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            self.threads.append(threading.get_ident())
        return None

import anyio, kclient
from kclient.testing import memory_broker

async def main(address):
    assert "pyarrow" not in sys.modules
    sys.meta_path.insert(0, Noting())
    async with kclient.{kind}("t", bootstrap_servers=address, group_id="g") as consumer:
        try:
            await consumer.poll_arrow(0.0)
        except kclient.KafkaError as error:
            print(type(error).__name__)
    assert "pyarrow" in sys.modules
    assert Noting.threads and threading.get_ident() not in Noting.threads, Noting.threads

with memory_broker() as address:
    anyio.run(main, address, backend="{backend}")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["Consumer", "ShareConsumer"])
def test_pyarrow_is_imported_in_a_thread(kind: str, backend: str) -> None:
    program = PROGRAM.replace("{kind}", kind).replace("{backend}", backend)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
