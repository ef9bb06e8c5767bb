"""`kclient migrate`: what its commands do, and how they end."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from kclient.cli import output
from kclient.cli.errors import FAILED, UsageError, check_terminated, named_by
from kclient.cli.migrate_output import MigrationProgress, print_plan, print_verification
from kclient.cli.settings import PATIENCE_MS, check_directory, parse_config
from kclient.errors import BrokerConnectionError
from kclient.htp.urls import split_options
from kclient.inprocess import exists
from kclient.migration.cutover import CutOver, CutOverRun
from kclient.migration.following import Following, Sides, beside, both_sides
from kclient.migration.mirror import LEAST_MEMORY, MEMORY, Mirror
from kclient.migration.planning import Plan, make_plan
from kclient.migration.source import SourceCluster, SourceTopic
from kclient.migration.throttle import Throttle
from kclient.migration.verifying import ComparedSides
from kclient.migration.verifying import verify as compare_sides

_PROGRESS_S: Final = 0.5
_FROM: Final = "--from says where the cluster is"
_CALL_MS: Final = 60_000
"""How long one question to a busy cluster may take; runs ask again."""


@dataclass(frozen=True)
class StoreOptions:
    """How the store is opened."""

    address: str
    listen: str | None
    advertise: str | None
    durability: str
    mapping: str
    brokers: int | None
    config: dict[str, str]


@dataclass(frozen=True)
class TopicSelection:
    """Which topics are meant."""

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    excluded: frozenset[str] = field(default_factory=frozenset)

    def __call__(self, name: str) -> bool:
        """Whether a topic is."""
        if name in self.excluded:
            return False
        if not self.names and self.pattern is None:
            return True
        return name in self.names or (self.pattern is not None and self.pattern.fullmatch(name) is not None)

    def check(self, found: dict[str, SourceTopic]) -> None:
        """Raises `UsageError` where a topic that was named is not at the source, or none is."""
        if missing := sorted(self.names - found.keys()):
            raise UsageError(f"there is no topic {', '.join(missing)} at the source")
        if not any(self(name) for name in found):
            raise UsageError("the source has no topic that is to be moved")


def selection(topics: list[str] | None, pattern: str | None, exclude: list[str] | None) -> TopicSelection:
    """What the user has selected. Raises `UsageError` for a pattern that is none."""
    try:
        compiled = None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--pattern {pattern!r} is not a regular expression: {error}") from error
    return TopicSelection(frozenset(topics or ()), compiled, frozenset(exclude or ()))


def source_settings(address: str, config: list[str] | None) -> dict[str, object]:
    """The settings of the client of the source.

    Raises:
        UsageError: The user gave one that is the command's own.
        BrokerConnectionError: There is no such directory: it is only read, so it is not made.
    """
    given = parse_config(config)
    if "bootstrap.servers" in {name.replace("_", ".") for name in given}:
        raise UsageError("--from says where the brokers are, not --config bootstrap.servers")
    check_directory(address)
    return {
        "bootstrap.servers": address,
        "client.id": "kclient-migrate",
        "default.api.timeout.ms": _CALL_MS,
        **given,
    }


def _check_store(address: str) -> None:
    """Raises `UsageError` for what is no store that outlives the command."""
    if not address.startswith("embedded:") or not _directory(address):
        raise UsageError(
            f"--to is embedded:DIR, the data directory of a gateway that does not run now, not {address!r}"
        )
    directory = Path(_directory(address))
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--to {address}: that is not a directory")


def _directory(address: str) -> str:
    return split_options(address.removeprefix("embedded:"))[0]


def _for_clients(address: str) -> str:
    """The address of a store as clients name it: its options are said where it is opened."""
    return f"embedded:{_directory(address)}" if address.startswith("embedded:") else address


def plan(settings: dict[str, object], store: str, selected: TopicSelection, *, as_json: bool) -> int:
    """Print the plan; 1 if something stands in the way."""
    _check_store(store)
    with named_by(_FROM):
        made = anyio.run(_plan, settings, store, selected)
    if as_json:
        output.line(json.dumps(made.as_json(), indent=2, sort_keys=True))
    else:
        print_plan(made)
    return FAILED if made.problems else 0


async def _plan(settings: dict[str, object], store: str, selected: TopicSelection) -> Plan:
    async with SourceCluster(_patient(settings)) as source:
        selected.check(await source.topics())
        if not exists(store):  # to connect to it would make it
            return await make_plan(source, None, selected)
        async with SourceCluster(bootstrap_servers=_for_clients(store)) as target:
            return await make_plan(source, target, selected)


def _patient(settings: dict[str, object]) -> dict[str, object]:
    """For commands that people wait for: a source that is not there is told soon."""
    return {**settings, "default.api.timeout.ms": PATIENCE_MS} if settings.get(_API) == _CALL_MS else settings


_API: Final = "default.api.timeout.ms"


def run(
    settings: dict[str, object],
    store: StoreOptions,
    selected: TopicSelection,
    *,
    rate: float | None,
    memory: int | None,
    until_caught_up: bool,
) -> int:
    """Mirror until a signal comes: 130 after Ctrl-C, 0 after SIGTERM.

    Until everything is there, if that was asked for: 1 if some topics could not be mirrored, and 143 if SIGTERM came
    before.
    """
    _check_store(store.address)
    if store.advertise is not None and store.listen is None:
        raise UsageError("--advertise is what clients are told that come to --listen HOST:PORT, which is missing")
    throttle, memory = _throttle(rate), _memory(memory)

    async def work(sides: Sides, progress: MigrationProgress, stop: Callable[[Callable[[], None]], None]) -> int | None:
        mirror = Mirror(sides.source, sides.target, selected, throttle=throttle(), note=progress.note, memory=memory)
        stop(mirror.stop)
        await mirror.prepare()
        if store.listen is not None:
            progress.note(f"clients may read what was moved at {sides.gateway.bootstrap}")
        following = Following(sides, mirror, note=progress.note)
        with progress.showing(mirror):
            await following.run(progress.keep_showing, until_caught_up=until_caught_up)
        progress.summary(mirror, following.offsets)
        if not following.done:
            return None
        return FAILED if mirror.problems else 0

    return _with_both(settings, store, selected, work, endless=not until_caught_up)


def cutover(
    settings: dict[str, object],
    store: StoreOptions,
    selected: TopicSelection,
    *,
    quiet: float,
    timeout: float,
    active_groups: bool,
    records: bool,
    rate: float | None,
    memory: int | None,
) -> int:
    """Have the store take over; 1 if producers were heard of afterwards, or the source could not be asked for them.

    130 if Ctrl-C breaks it off, 143 if SIGTERM does.
    """
    _check_store(store.address)
    throttle, memory = _throttle(rate), _memory(memory)

    async def work(sides: Sides, progress: MigrationProgress, stop: Callable[[Callable[[], None]], None]) -> int | None:
        mirror = Mirror(sides.source, sides.target, selected, throttle=throttle(), note=progress.note, memory=memory)
        await mirror.prepare()
        cut = CutOverRun(
            sides.source, sides.target, sides.clients, mirror,
            quiet=quiet, timeout=timeout, active_groups=active_groups, records=records,
            note=progress.note, progress=lambda each: progress.compared(each),
        )  # fmt: skip
        done: list[CutOver] = []
        with anyio.CancelScope() as scope:
            stop(scope.cancel)
            done.append(await beside(mirror, cut.run))
        if not done:
            taken = [topic.name for topic in mirror.topics.values() if not topic.record.mirrored]
            told = f"only {', '.join(taken)} were" if taken else "nothing was"
            progress.note(f"broken off, and {told} taken over: cut over again, or go on with kclient migrate run")
            return None
        _told_of(done[0], mirror, store)
        return FAILED if done[0].late or done[0].unknown is not None else 0

    return _with_both(settings, store, selected, work)


def _told_of(done: CutOver, mirror: Mirror, store: StoreOptions) -> None:
    for late in done.late:
        output.warn(f"{late} after the cut-over: those records are at the source only, have them produced again")
    if done.unknown is not None:
        output.warn(
            "whether producers have written at the source since is not known, since it could not be asked after the "
            f"cut-over: {done.unknown}"
        )
    for note in done.verification.notes:
        output.warn(note)
    if not done.topics:
        output.line(f"nothing was left to be taken over: {', '.join(sorted(mirror.taken_over)) or 'no topic'}")
        return
    records = sum(each.records for each in done.verification.partitions)
    output.line(
        f"{len(done.topics)} topics were taken over; {records} records were compared, "
        f"{done.offsets.moved + done.offsets.same} committed offsets are in place"
    )
    output.line(f"now start the gateway: kclient gateway --data {_directory(store.address)} --listen HOST:PORT")
    output.line("then start the clients with its address as bootstrap.servers; nothing else in them changes")


def verify(settings: dict[str, object], store: str, selected: TopicSelection, *, records: bool, as_json: bool) -> int:
    """Compare both sides; 1 if they differ."""
    if not exists(store):
        raise BrokerConnectionError(f"there is no gateway's directory at {store}", retriable=False)
    with named_by("--from and --to say where the two sides are"):
        found = anyio.run(_verify, settings, store, selected, records)
    if as_json:
        output.line(json.dumps(_as_json(found), indent=2, sort_keys=True))
    else:
        print_verification(found)
    return FAILED if found.failures else 0


async def _verify(settings: dict[str, object], store: str, selected: TopicSelection, records: bool) -> ComparedSides:
    progress = MigrationProgress()
    async with (
        SourceCluster(_patient(settings)) as source,
        SourceCluster(bootstrap_servers=_for_clients(store)) as target,
    ):
        topics = await source.topics()
        selected.check(topics)
        wanted = [topic for name, topic in topics.items() if selected(name)]
        return await compare_sides(source, target, wanted, records=records, progress=progress.compared)


def _as_json(found: ComparedSides) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "source": None if each.source is None else each.source._asdict(),
                "store": None if each.target is None else each.target._asdict(),
                "records": each.records,
                "checksum": each.checksum or None,
                "difference": each.difference,
                "note": each.note,
            }
            for each in found.partitions
        ],
        "committed_offsets": found.offsets,
        "differences": found.failures,
        "notes": found.notes,
    }


def _throttle(rate: float | None) -> Callable[[], Throttle]:
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--max-bytes-per-second is a positive number, not {rate:g}")
    return lambda: Throttle(rate, anyio.current_time())


def _memory(size: int | None) -> int:
    if size is not None and size < LEAST_MEMORY:
        raise UsageError(f"--max-memory is {LEAST_MEMORY} bytes at least, not {size}")
    return MEMORY if size is None else size


_Work = Callable[[Sides, MigrationProgress, Callable[[Callable[[], None]], None]], Awaitable[int | None]]


def _with_both(
    settings: dict[str, object], store: StoreOptions, selected: TopicSelection, work: _Work, *, endless: bool = False
) -> int:
    """Open both sides and do the work.

    Args:
        settings: Of the client of the source.
        store: The store.
        selected: The topics: some of these have to be there.
        work: Returns the exit code, or None if a signal has ended it.
        endless: Whether it goes on until SIGTERM, which is then no failure.
    """
    options = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
    with named_by(_FROM):
        return anyio.run(_working, settings, store, selected, work, endless, backend="asyncio", backend_options=options)


async def _working(
    settings: dict[str, object], store: StoreOptions, selected: TopicSelection, work: _Work, endless: bool
) -> int:
    """Open both sides and do the work; a signal ends it in order, a second one at once."""
    ends: list[Callable[[], None]] = []
    received: list[signal.Signals] = []
    progress = MigrationProgress()
    outcome: list[int | None] = []
    failure: list[Exception] = []

    async def body() -> None:
        try:
            async with SourceCluster(_patient(settings)) as asked:
                selected.check(await asked.topics())
            async with both_sides(
                settings, store.address, listen=store.listen, advertise=store.advertise,
                durability=store.durability, mapping=store.mapping, brokers=store.brokers, config=store.config,
            ) as sides:  # fmt: skip
                outcome.append(await work(sides, progress, ends.append))
        except Exception as error:  # noqa: BLE001  (raised below, outside of the group, which would wrap it)
            failure.append(error)

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        check_terminated()  # from here on the signals come to us
        async with anyio.create_task_group() as tasks:

            async def watch(came: AsyncIterator[signal.Signals]) -> None:
                async for each in came:
                    first = not received
                    received.append(each)
                    if first and ends:
                        for end in ends:
                            end()
                    else:
                        tasks.cancel_scope.cancel()

            tasks.start_soon(watch, signals)
            await body()
            tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]
    if outcome and outcome[0] is not None:  # done, whatever came meanwhile
        return outcome[0]
    return 0 if endless and received[0] == signal.SIGTERM else 128 + received[0]
