"""`kclient gateway`: run a gateway until a signal ends it."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import anyio
import anyio.to_thread

from kclient.cli.errors import UsageError, check_terminated, reason_of
from kclient.cli.gateway_options import GatewayOptions
from kclient.cli.logs import configure_logs
from kclient.cli.service_manager import ServiceManager
from kclient.cli.supervised import Tie
from kclient.config.secret import Secret
from kclient.errors import ConfigError, KafkaError
from kclient.gateway.gateway import DRAIN_S, LISTEN, Gateway
from kclient.gateway.security.scram_users import ScramChange
from kclient.net.sasl.scram import SCRAM_MECHANISMS, ScramCredential

logger: logging.Logger = logging.getLogger("kclient.gateway")

_FULL_AFTER = 100
"""Collections of the middle generation before a full one; 10 is usual."""


def serve(options: GatewayOptions) -> int:
    """Run the gateway; returns the exit code: 0 after SIGTERM, 130 after Ctrl-C."""
    hangups = _Hangups()  # settings are read from here on
    options.check()
    user = _user(options.add_user, options.password_file)
    configure_logs(options.log_level, options.log_format)
    options.tell_of_log_dirs()
    gateway = Gateway(
        f"embedded:{options.directory()}",
        LISTEN if options.listen is None else options.listen,
        options.advertise,
        durability=options.durability,
        mapping=options.mapping,
        brokers=options.brokers,
        config=options.settings.read(),
    )
    uvloop = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
    return anyio.run(_serve, gateway, options, user, hangups, backend="asyncio", backend_options=uvloop)


class _Hangups:
    """SIGHUP before it is received, and after: it ends nothing, and what came early is not lost."""

    def __init__(self) -> None:
        self.early: bool = False
        """Whether one has come since settings were read."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.early = True

    @contextmanager
    def received(self) -> Iterator[AsyncIterator[signal.Signals]]:
        """They can be waited for meanwhile; those that come later are ignored, to the end of the process."""
        with anyio.open_signal_receiver(signal.SIGHUP) as hangups:
            try:
                yield hangups
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


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


async def _serve(gateway: Gateway, options: GatewayOptions, user: tuple[str, Secret] | None, noted: _Hangups) -> int:
    code, tie, manager = 0, Tie(), ServiceManager()
    with (
        anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
        noted.received() as hangups,
    ):
        check_terminated()  # from here on the signals come to us
        more = ""

        async def start() -> None:
            nonlocal more
            if options.metrics is not None:
                gateway.expect_metrics()
            await gateway.start()
            if user is not None:
                await _add_user(gateway, *user)
            if options.metrics is not None:
                more += f", metrics at http://{await gateway.serve_metrics(options.metrics)}/metrics"
            if options.health is not None:
                more += f", health at http://{await gateway.serve_health(options.health)}/readyz"

        broken_off = await _start(gateway, start, signals, tie)
        if broken_off is not None:
            return _code_after(broken_off)
        _collect_rarely()
        told = "" if gateway.address == gateway.bootstrap else f" (clients are told {gateway.bootstrap})"
        status = f"listens on {gateway.address}{told}, data in {options.directory()}{more}"
        print(f"kclient gateway {status}", flush=True)  # noqa: T201
        manager.ready(status)
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

            async def reload() -> None:
                manager.reloading()
                await _reload(gateway, options)
                manager.ready(status)

            async def reload_when_told() -> None:
                if noted.early:
                    await reload()
                async for _ in hangups:
                    await reload()

            tasks.start_soon(manager.keep_alive)
            tasks.start_soon(wait_for_supervisor)
            tasks.start_soon(reload_when_told)
            tasks.start_soon(wait_for_failure)
            tasks.start_soon(wait_for_signal)
        manager.stopping()
        await _close(gateway, drain=code == 0, signals=signals)
    if gateway.failure is not None:
        raise gateway.failure
    return code


async def _reload(gateway: Gateway, options: GatewayOptions) -> None:
    """Read settings and certificates again, and tell the log what came of it: what is in use stays where it cannot."""
    settings: dict[str, str] | None = None  # then certificates alone
    try:
        settings = await anyio.to_thread.run_sync(options.settings.read_again)
    except ConfigError as error:
        logger.error("SIGHUP: no setting was changed: %s", reason_of(error))
    try:
        found = await gateway.reload(settings)
    except KafkaError as error:
        logger.error("SIGHUP: not everything was changed: %s", reason_of(error))
        return
    except Exception:  # it ends nobody's connections
        logger.exception("SIGHUP: not everything was changed")
        return
    for line in found.lines():
        logger.log(logging.WARNING if found.left_undone else logging.INFO, "SIGHUP: %s", line)


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
