"""`kclient gateway --processes N`: so many gateways over one directory, each a process, started again when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from kclient.cli.errors import FAILED, UsageError, check_terminated
from kclient.cli.gateway_options import GatewayOptions
from kclient.cli.logs import PROCESS, configure_logs, json_line
from kclient.cli.service_manager import ServiceManager
from kclient.cli.supervised import VARIABLE
from kclient.gateway.config import BrokerConfig
from kclient.gateway.gateway import LISTEN
from kclient.gateway.ownership import LEASE_S
from kclient.gateway.security.listeners import LISTENERS
from kclient.net.address import DEFAULT_PORT, Address, parse_address

MOST: Final = 64
"""Processes, at most."""
_LINE: Final = 1 << 20
"""Bytes of a line of the log, at most; a longer one is told in pieces."""
_LISTENS: Final = "kclient gateway listens on "
_HANGS_S: Final = LEASE_S * 1.05
"""After so many seconds of silence a process is killed: the others have taken it for lost by then, and it has files
that they need."""
_LOOK_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
"""Seconds until a process is started again that does not stay."""


class ProcessPlan:
    """What is to be started.

    Args:
        number: So many processes.
        given: The options of all. The first one accepts clients, and serves metrics and health, where they say, and
            tells clients what they say; each further one has the next port, or all have free ones. `node.id` is the
            first one's, the others have the next ones.

    Raises:
        UsageError: There are too many or too few, or the options do not go together.
    """

    def __init__(self, number: int, given: GatewayOptions) -> None:
        if not 1 <= number <= MOST:
            raise UsageError(f"--processes is a number from 1 to {MOST}, not {number}")
        if given.add_user is not None or given.password_file is not None:
            raise UsageError("--add-user does not go with --processes: add the user with a single gateway first")
        given.settings.check_for_others()
        settings = given.settings.read()
        if LISTENERS in settings:
            raise UsageError(
                f"--processes does not go with {LISTENERS}, whose ports one process has: start each by itself, "
                "with a node.id and ports of its own"
            )
        self.data: Path = given.directory()
        self._given = given
        self._python = [sys.executable] if _runs_what_lies_here() else [sys.executable, "-P"]
        node_id = BrokerConfig(settings).get_int("node.id")
        self._node_ids = [-1 if node_id < 0 else node_id + place for place in range(number)]
        self._listen = _in_turn("--listen", LISTEN if given.listen is None else given.listen, number)
        self._advertise = _in_turn("--advertise", given.advertise, number)
        self._metrics = _in_turn("--metrics", given.metrics, number, default_port=None)
        self._health = _in_turn("--health", given.health, number, default_port=None)

    @property
    def number(self) -> int:
        """Of processes."""
        return len(self._listen)

    def keep_address(self, place: int, address: Address) -> None:
        """Have a process listen there again, if it is started again."""
        self._listen[place] = address

    def command(self, place: int) -> list[str]:
        """What starts one of the processes."""
        given = self._given
        options = {
            "--data": str(self.data),
            "--listen": self._listen[place],
            "--advertise": self._advertise[place],
            "--durability": given.durability,
            "--mapping": given.mapping,
            "--brokers": given.brokers,
            "--metrics": self._metrics[place],
            "--health": self._health[place],
            "--log-level": given.log_level,
            "--log-format": given.log_format,
            "--config": given.settings.file,  # read by each: what is in it is not to be seen in a list of processes
        }
        words = [f"{name}={value}" for name, value in options.items() if value is not None]
        settings = {**given.settings.of_the_line, "node.id": str(self._node_ids[place])}
        settings.pop("broker.id", None)
        words += [f"--config={name}={value}" for name, value in settings.items()]
        return [*self._python, "-m", "kclient", "gateway", *words]


def _runs_what_lies_here() -> bool:
    """Whether Python finds modules in the working directory, as after `python -m`; not so the command `kclient`."""
    try:
        return not {"", os.getcwd()}.isdisjoint(sys.path)  # noqa: PTH109  (as Python writes it there)
    except FileNotFoundError:
        return False


def _in_turn(
    option: str, text: str | None, number: int, *, default_port: int | None = DEFAULT_PORT
) -> list[Address | None]:
    """An address for each process."""
    if text is None:
        return [None] * number
    first = parse_address(text, default_port=default_port)
    if first.scheme != "tcp":
        raise UsageError(f"{option} is HOST:PORT where there are several processes, not {first}")
    if first.port and first.port + number - 1 > 65535:
        raise UsageError(f"{option}={first} leaves no ports for {number} processes: each has the next one")
    return [replace(first, port=first.port + place if first.port else 0) for place in range(number)]


def serve_processes(number: int, options: GatewayOptions) -> int:
    """Run the gateways; returns the exit code: 0 after SIGTERM, 130 after Ctrl-C, 1 if one does not start."""
    options.check()
    plan = ProcessPlan(number, options)
    configure_logs(options.log_level, options.log_format)
    return anyio.run(_Processes(plan, json=options.log_format == "json").run, backend="asyncio")


class _Child:
    """One of the processes, from its start to its end."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.name = str(place + 1)
        self.process: Process | None = None
        self.listens = False
        """Whether it has said so."""
        self.to_reload = False
        """Whether SIGHUP has come since it was started, and before it could be told."""
        self.heard = time.monotonic()
        """When it has said the last time that it runs."""
        self.since = time.monotonic()

    def kill(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class _Processes:
    """All of them.

    Args:
        plan: What they are.
        json: Whether their logs are lines of JSON, and so what is told of them.
    """

    def __init__(self, plan: ProcessPlan, *, json: bool) -> None:
        self._plan = plan
        self._json = json
        self._manager = ServiceManager()
        self._children = [_Child(place) for place in range(plan.number)]
        self._lines: dict[int, str] = {}
        """What each has said when it was ready the first time."""
        self._code: int | None = None
        """Of this process, once it is to end."""
        self._ending = anyio.Event()

    async def run(self) -> int:
        """Until a signal comes, or one does not start at first."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            check_terminated()
            async with anyio.create_task_group() as tasks:

                async def pass_on() -> None:
                    async for received in signals:
                        if received == signal.SIGHUP:  # each reads its settings again
                            for child in self._children:
                                if child.listens:
                                    child.kill(received)
                                else:  # it may not know the signal yet
                                    child.to_reload = True
                            continue
                        if self._code is not None:  # a second one ends all at once
                            received = signal.SIGKILL
                        self._end(0 if received == signal.SIGTERM else 128 + received, received)

                tasks.start_soon(pass_on)
                tasks.start_soon(self._manager.keep_alive)
                async with anyio.create_task_group() as children:
                    for child in self._children:
                        children.start_soon(self._keep, child)
                tasks.cancel_scope.cancel()
        assert self._code is not None
        return self._code

    def _end(self, code: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Have all processes end; their starts too."""
        if self._code is None:
            self._code = code
            self._manager.stopping()
        self._ending.set()
        for child in self._children:
            child.kill(number)

    async def _keep(self, child: _Child) -> None:
        pause = _FIRST_PAUSE_S
        while not self._ending.is_set():
            began = time.monotonic()
            code = 0
            try:
                code = await self._run_once(child)
                how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
            except OSError as error:  # as for want of memory or of descriptors: the others go on
                how = f"could not be started ({error})"
            if self._ending.is_set():
                return
            if child.place not in self._lines:  # what is wrong at the start is wrong the next time too
                if code <= 0:  # else it has said why itself
                    self._tell(child.name, f"this process {how}")
                self._end(code if code > 0 else FAILED)
                return
            if time.monotonic() - began > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            self._tell(child.name, f"this process {how}: it is started again in {pause:g} s")
            with anyio.move_on_after(pause):
                await self._ending.wait()
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _run_once(self, child: _Child) -> int:
        """Start one, and wait for its end; its exit code."""
        ours, its = socket.socketpair()
        with ours:
            with its:
                environment = {**os.environ, VARIABLE: str(its.fileno()), PROCESS: child.name}
                process = child.process = await anyio.open_process(
                    self._plan.command(child.place),
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[its.fileno()],
                    start_new_session=True,  # Ctrl-C comes to this process, which passes it on
                )
            child.heard, child.listens = time.monotonic(), False
            if self._ending.is_set():
                child.kill(signal.SIGTERM)
            async with process, anyio.create_task_group() as tasks:
                logged = anyio.Event()
                tasks.start_soon(self._read_log, child, process, logged)
                tasks.start_soon(self._read_start, child, process)
                tasks.start_soon(self._watch, child, ours)
                code = await process.wait()
                with anyio.move_on_after(_LOOK_S):  # what it has said last
                    await logged.wait()
                tasks.cancel_scope.cancel()
        return code

    async def _read_start(self, child: _Child, process: Process) -> None:
        assert process.stdout is not None
        stream = BufferedByteReceiveStream(process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            line = (await stream.receive_until(b"\n", _LINE)).decode(errors="replace")
            address, _, more = line.removeprefix(_LISTENS).partition(", data in ")
            self._plan.keep_address(child.place, parse_address(address.split(" ")[0]))
            ready = len(self._lines) == self._plan.number
            child.listens = True
            if child.to_reload:
                child.to_reload = False
                child.kill(signal.SIGHUP)
            self._lines[child.place] = f"{address}{_more_of(more)}"
            if not ready and len(self._lines) == self._plan.number:
                told = ", ".join(self._lines[place] for place in range(self._plan.number))
                status = f"{told}, {self._plan.number} processes, data in {self._plan.data}"
                print(f"{_LISTENS}{status}", flush=True)  # noqa: T201
                self._manager.ready(f"listens on {status}")

    async def _read_log(self, child: _Child, process: Process, logged: anyio.Event) -> None:
        """Write its log with its number before each line."""
        stderr = process.stderr
        assert stderr is not None
        kept = b""
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                *lines, kept = (kept + await stderr.receive()).split(b"\n")
                for line in lines:
                    self._tell(child.name, line.decode(errors="replace"))
                if len(kept) > _LINE:
                    self._tell(child.name, kept.decode(errors="replace"))
                    kept = b""
        if kept:
            self._tell(child.name, kept.decode(errors="replace"))
        logged.set()

    async def _watch(self, child: _Child, tie: socket.socket) -> None:
        """Kill it when it hangs."""
        tie.setblocking(False)
        while True:
            await anyio.sleep(_LOOK_S)
            with suppress(BlockingIOError, OSError):
                if tie.recv(4096):
                    child.heard = time.monotonic()
            if time.monotonic() - child.heard > _HANGS_S:
                self._tell(child.name, f"this process has not answered for {_HANGS_S:.0f} s, and is killed")
                child.kill(signal.SIGKILL)
                return

    def _tell(self, name: str, line: str) -> None:
        """Write a line of a process, or about it, with its number."""
        text = f"[{name}] {line}"
        if self._json:  # what it logs has its number already; what else it writes does not
            text = line if line.startswith("{") else json_line("error", "kclient.cli", line, process=int(name))
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _more_of(rest: str) -> str:
    """What the line of a process says of its metrics and its health."""
    found = [part for part in rest.strip().split(", ") if part.startswith(("metrics at ", "health at "))]
    return f" ({', '.join(found)})" if found else ""


__all__: Sequence[str] = ["MOST", "ProcessPlan", "serve_processes"]
