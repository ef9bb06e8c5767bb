"""`kclient gateway`: run a gateway until a signal ends it."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio

from kclient.cli.errors import UsageError, check_terminated
from kclient.cli.supervised import Tie
from kclient.config.secret import Secret
from kclient.gateway.gateway import DRAIN_S, Gateway
from kclient.gateway.metrics_server import check_prometheus
from kclient.gateway.security.scram_users import ScramChange
from kclient.net.address import parse_address
from kclient.net.sasl.scram import SCRAM_MECHANISMS, ScramCredential

LISTEN = "127.0.0.1:9092"
_FULL_AFTER = 100
"""Collections of the middle generation before a full one; 10 is usual."""
_LEVELS = ("debug", "info", "warning", "error", "critical")


def serve(
    data: str,
    listen: str,
    advertise: str | None,
    durability: str,
    mapping: str,
    brokers: int | None,
    metrics: str | None,
    config: dict[str, str],
    log_level: str,
    add_user: str | None = None,
    password_file: Path | None = None,
) -> int:
    """Run the gateway; returns the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    check_gateway(data, log_level, metrics)
    user = _user(add_user, password_file)
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    directory = data_directory(data)
    gateway = Gateway(
        f"embedded:{directory}",
        listen,
        advertise,
        durability=durability,
        mapping=mapping,
        brokers=brokers,
        config=config,
    )
    options = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
    return anyio.run(_serve, gateway, directory, metrics, user, backend="asyncio", backend_options=options)


def check_gateway(data: str, log_level: str, metrics: str | None) -> None:
    """Refuse what the command cannot be given. Raises `UsageError`, `ConfigError` or `MissingExtraError`."""
    if log_level.lower() not in _LEVELS:
        raise UsageError(f"--log-level is one of {', '.join(_LEVELS)}, not {log_level!r}")
    if metrics is not None:
        check_prometheus()
        parse_address(metrics, default_port=None)  # a broker's is none for metrics
    data_directory(data)


def data_directory(data: str) -> Path:
    """The data directory, unless what was given is hardly meant as one."""
    if not data:
        raise UsageError("--data is empty: name a directory, which may be new")
    if data.startswith(("embedded:", "memory:")):
        raise UsageError(f"--data names a directory, and {data!r} is an address: a gateway keeps its messages on disk")
    return Path(data).absolute()


def _user(name: str | None, password_file: Path | None) -> tuple[str, Secret] | None:
    """Who is to be able to log in, and with which password. Raises `UsageError`."""
    if name is None:
        if password_file is not None:
            raise UsageError("--password-file has no effect without --add-user NAME")
        return None
    if not name or not name.isprintable():
        raise UsageError("--add-user takes a name that is not empty, all of which can be printed")
    from kclient.cli.users import password_from

    return name, password_from(password_file)


async def _add_user(gateway: Gateway, name: str, password: Secret) -> None:
    """Let a user log in by SCRAM, whatever password there was before."""
    users = gateway.parts.scram_users
    for mechanism in SCRAM_MECHANISMS:
        credential = ScramCredential.derive(mechanism, password)
        for error in (await users.alter([ScramChange(name, mechanism, credential)])).values():
            raise error


async def _serve(gateway: Gateway, directory: Path, metrics: str | None, user: tuple[str, Secret] | None) -> int:
    code, tie = 0, Tie()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        check_terminated()  # from here on the signals come to us
        more = ""

        async def start() -> None:
            nonlocal more
            if metrics is not None:
                gateway.expect_metrics()
            await gateway.start()
            if user is not None:
                await _add_user(gateway, *user)
            if metrics is not None:
                more = f", metrics at http://{await gateway.serve_metrics(metrics)}/metrics"

        broken_off = await _start(gateway, start, signals, tie)
        if broken_off is not None:
            return _code_after(broken_off)
        _collect_rarely()
        told = "" if gateway.address == gateway.bootstrap else f" (clients are told {gateway.bootstrap})"
        print(f"kclient gateway listens on {gateway.address}{told}, data in {directory}{more}", flush=True)  # noqa: T201
        async with anyio.create_task_group() as tasks:

            async def wait_for_failure() -> None:
                try:
                    await gateway.wait()
                finally:
                    tasks.cancel_scope.cancel()

            async def wait_for_signal() -> None:
                nonlocal code
                async for received in signals:
                    code = _code_after(received)
                    tasks.cancel_scope.cancel()

            async def wait_for_supervisor() -> None:
                await tie.hold()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_supervisor)
            tasks.start_soon(wait_for_failure)
            tasks.start_soon(wait_for_signal)
        await _close(gateway, drain=code == 0, signals=signals)
    if gateway.failure is not None:
        raise gateway.failure
    return code


def _code_after(received: signal.Signals) -> int:
    return 0 if received == signal.SIGTERM else 128 + received


async def _start(
    gateway: Gateway, start: Callable[[], Awaitable[object]], signals: AsyncIterator[signal.Signals], tie: Tie
) -> signal.Signals | None:
    """Start it, unless a signal comes first, which is returned; a second one ends the process at once."""
    first: signal.Signals | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def break_off() -> None:
            nonlocal first
            async for received in signals:
                if first is not None:
                    os._exit(128 + received)
                first = received
                starting.cancel()

        async def end_without_supervisor() -> None:
            nonlocal first
            await tie.hold()
            first = first or signal.SIGTERM
            starting.cancel()

        with anyio.CancelScope() as starting:
            tasks.start_soon(end_without_supervisor)
            tasks.start_soon(break_off)
            try:
                await start()
            except Exception as error:  # noqa: BLE001  (raised outside of the group, which would wrap it)
                failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        await gateway.close(0.0)  # it may have started, and what comes with it may not
        raise failure
    if first is not None:
        await gateway.close(0.0)  # it may have started in that moment
    return first


def _collect_rarely() -> None:
    """Full garbage collections hold up everybody, and the gateway makes next to nothing that only they can free."""
    gc.freeze()  # what there is now stays
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_AFTER)


async def _close(gateway: Gateway, *, drain: bool, signals: AsyncIterator[signal.Signals]) -> None:
    """Close in order; a second signal ends the process at once, which loses nothing that was acknowledged."""
    async with anyio.create_task_group() as tasks:

        async def end_at_once() -> None:
            async for received in signals:
                os._exit(128 + received)

        tasks.start_soon(end_at_once)
        await gateway.close(DRAIN_S if drain else 0.0)
        tasks.cancel_scope.cancel()
