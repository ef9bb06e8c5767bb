"""Gateways that nobody closed: one warning that says what to do, and silence for all others."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import kclient.sync
from kclient.gateway import Gateway
from tests.gateway_wire import names
from tests.sweeps import slow

LOOP_ENDS = """
import asyncio, gc, sys
import kclient

async def main(how, store):
    gateway = kclient.Gateway(store, listen=None)
    await gateway.start()
    if how == "closed":
        await gateway.close()
    return gateway if how == "kept" else None

kept = asyncio.run(main(*sys.argv[1:]))
if sys.argv[1] == "dropped":
    gc.collect()
print("goes on")
"""

BLOCKING = """
import sys
import kclient.sync

gateway = kclient.sync.Gateway(sys.argv[2], listen=None)
gateway.start()
if sys.argv[1] == "closed":
    gateway.close()
if sys.argv[1] == "dropped":
    del gateway
"""


def run(code: str, how: str, store: str) -> str:
    command = [sys.executable, "-W", "always", "-c", code, how, store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "never awaited" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dropped", "closed", *slow("forgotten", "kept")])
def test_a_loop_that_ends_is_one_warning_and_one_line(how: str, tmp_path: Path) -> None:
    told = run(LOOP_ENDS, how, f"embedded:{tmp_path / 'data'}")
    if how == "closed":
        assert told == ""
        return
    assert told.count("ResourceWarning: <Gateway embedded:") == 1
    assert "was not closed: its directory stays locked until the program ends; use `async with`" in told
    assert told.count("serves no more") == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dropped", "closed", *slow("kept")])
def test_an_interpreter_that_ends_is_one_warning_and_one_line(how: str) -> None:
    told = run(BLOCKING, how, "memory:forgotten")
    if how == "closed":
        assert told == ""
        return
    assert told.count("ResourceWarning: <sync.Gateway memory:forgotten") == 1
    assert "was not closed; use `with`, or `gateway.close()`" in told
    assert told.count("was not closed") == 1
    assert told.count("serves no more") == 1


@pytest.mark.anyio
async def test_who_closes_or_never_starts_is_not_warned() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gateway = Gateway(f"memory:{next(names)}", listen=None)
        async with gateway:
            pass
        failed = Gateway(f"memory:{next(names)}", listen="256.0.0.1:1")
        with pytest.raises(OSError, match="256"):
            await failed.start()
        never = Gateway(f"memory:{next(names)}")
        del gateway, failed, never
        gc.collect()
    assert not [each for each in told if "Gateway" in str(each.message)]


def test_a_dropped_blocking_gateway_warns_at_once() -> None:
    gateway = kclient.sync.Gateway(f"memory:{next(names)}", listen=None)
    assert repr(gateway).startswith("<sync.Gateway memory:")
    gateway.start()
    close = gateway._gateway.close
    portal = gateway._portal
    with pytest.warns(ResourceWarning, match=r"<sync.Gateway memory:.*was not closed; use `with`"):
        del gateway
    portal.call(close)
    never = kclient.sync.Gateway(f"memory:{next(names)}")
    del never


OF_ITS_OWNER = """
import asyncio, gc
import kclient


async def main():
    async with kclient.htp.open_store("memory:of-another") as store:
        gateway = kclient.Gateway(store, listen="127.0.0.1:0")
        await gateway.start()
        host, port = gateway.bootstrap.split(":")
        del gateway
        gc.collect()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write((14).to_bytes(4) + bytes.fromhex("001200000000000700") + b"\\x04test")
        assert (await reader.readexactly(8))[4:] == (7).to_bytes(4)
        writer.close()
        await writer.wait_closed()
    print("served")

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_gateway_that_nobody_holds_serves_until_its_loop_ends() -> None:
    command = [sys.executable, "-W", "always", "-c", OF_ITS_OWNER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "served\n"
    assert done.stderr.count("ResourceWarning: <Gateway <kclient.htp.memory") == 1
    assert done.stderr.count("serves no more") == 1
