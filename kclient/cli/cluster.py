"""`kclient cluster`: which brokers there are, who leads what, what is being moved; move and drain."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kclient.admin import ConfigResource, ConfigResourceType, PartitionReassignment
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.errors import UnknownTopicOrPartitionError
from kclient.sync import Admin
from kclient.types import PartitionInfo, TopicPartition

WATCH_S = 1.0
"""Seconds between two looks with `--watch`."""
_AT_ONCE = 500
"""Topics that are asked about in one request."""

Moves = Mapping[TopicPartition, PartitionReassignment]


class Sheet(NamedTuple):
    """A table, and the same as one object."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    fields: Mapping[str, Any]


def show(look: Callable[[Admin], Sheet], settings: dict[str, object], *, form: str, watch: bool) -> int:
    """Print what a look at the cluster finds; with `watch` again and again, until Ctrl-C."""
    if form not in ("table", "json"):
        raise UsageError(f"--output is table or json, not {form!r}")
    with Admin(settings) as admin:
        if not watch:
            _print(look(admin), form)
        elif form == "json" or not output.is_terminal():
            while True:
                _print(look(admin), form)
                time.sleep(WATCH_S)
        else:
            _live(lambda: look(admin))
    return 0


def _print(sheet: Sheet, form: str) -> None:
    if form == "json":
        output.line(json.dumps(sheet.fields, ensure_ascii=False))
    else:
        output.table(sheet.columns, sheet.rows, title=sheet.title)


def _live(look: Callable[[], Sheet]) -> None:
    from rich.live import Live

    def shown() -> Any:
        sheet = look()
        return output.rich_table(sheet.columns, sheet.rows, f"{sheet.title}  {time.strftime('%H:%M:%S')}")

    with Live(shown(), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(shown(), refresh=True)


def status(admin: Admin) -> Sheet:
    """The brokers, and how many partitions each leads, has, is given and gives away."""
    cluster = admin.describe_cluster()
    moves = admin.list_partition_reassignments()
    leads, holds = Counter[int](), Counter[int]()
    for info in _partitions(admin, []):
        holds.update(node.id for node in info.replicas)
        if info.leader is not None:
            leads[info.leader.id] += 1
    coming = Counter(node for move in moves.values() for node in move.adding_replicas)
    going = Counter(node for move in moves.values() for node in move.removing_replicas)
    controller = None if cluster.controller is None else cluster.controller.id
    brokers = [
        {
            "broker": node.id,
            "address": f"{node.host}:{node.port}",
            "rack": node.rack,
            "controller": node.id == controller,
            "leads": leads[node.id],
            "has": holds[node.id],
            "coming": coming[node.id],
            "going": going[node.id],
        }
        for node in sorted(cluster.nodes, key=lambda node: node.id)
    ]
    columns = ["broker", "address", "rack", "controller", "leads", "has", "coming", "going"]
    fields = {"cluster": cluster.cluster_id, "moves": len(moves), "brokers": brokers}
    title = f"cluster {cluster.cluster_id}, {len(moves)} partitions are being moved"
    return Sheet(title, columns, [[broker[column] for column in columns] for broker in brokers], fields)


def describe(admin: Admin, names: Sequence[str]) -> Sheet:
    """Each partition: who leads it under which epoch, who has it, and where it is being moved."""
    moves: Moves = admin.list_partition_reassignments()
    partitions = []
    for info in _partitions(admin, names):
        move = moves.get(info.topic_partition)
        partitions.append(
            {
                "topic": info.topic,
                "partition": info.partition,
                "leader": None if info.leader is None else info.leader.id,
                "epoch": info.leader_epoch,
                "replicas": [node.id for node in info.replicas],
                "in sync": [node.id for node in info.in_sync_replicas],
                "coming": [] if move is None else list(move.adding_replicas),
                "going": [] if move is None else list(move.removing_replicas),
            }
        )
    columns = ["topic", "partition", "leader", "epoch", "replicas", "in sync", "coming", "going"]
    rows = [[_cell(row[column]) for column in columns] for row in partitions]
    return Sheet(f"{len(partitions)} partitions", columns, rows, {"partitions": partitions})


def _cell(value: object) -> object:
    return (" ".join(map(str, value)) or None) if isinstance(value, list) else value


def _partitions(admin: Admin, names: Sequence[str]) -> list[PartitionInfo]:
    """Those of some topics, or of all, in order."""
    wanted = sorted(set(names)) or sorted(topic.name for topic in admin.list_topics(include_internal=True))
    found: list[PartitionInfo] = []
    for first in range(0, len(wanted), _AT_ONCE):
        some = wanted[first : first + _AT_ONCE]
        described = admin.describe_topics(some)
        for name in some:
            found += sorted(described[name].partitions, key=lambda info: info.partition)
    return found


def move(places: Sequence[str], settings: dict[str, object], *, to: str) -> int:
    """Have partitions (`TOPIC:PARTITION`), or all of a topic, move to other brokers."""
    replicas = [_broker(text, "--to") for text in to.split(",")]
    with Admin(settings) as admin:
        wanted = [tp for place in places for tp in _named(admin, place)]
        admin.alter_partition_reassignments(dict.fromkeys(wanted, replicas))
    output.note(f"moving to {to}: {', '.join(map(str, wanted))}")
    return 0


def _broker(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{option} is the number of a broker, or several with commas, not {text!r}")
    return int(text)


def _named(admin: Admin, place: str) -> list[TopicPartition]:
    topic, colon, number = place.rpartition(":")
    if not colon:
        topic = place
    elif not (number.isascii() and number.isdecimal()):
        raise UsageError(f"a partition is TOPIC or TOPIC:PARTITION, not {place!r}")
    every = [info.topic_partition for info in admin.describe_topics([topic])[topic].partitions]
    found = [tp for tp in every if not colon or tp.partition == int(number)]
    if not found:
        raise UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {number}")
    return sorted(found)


def drain(broker: int, settings: dict[str, object], *, dry_run: bool) -> int:
    """Have all partitions that a broker has move to the others, to those that have the fewest."""
    with Admin(settings) as admin:
        nodes = {node.id for node in admin.describe_cluster().nodes}
        if broker not in nodes:
            raise UsageError(f"there is no broker {broker}: there are {', '.join(map(str, sorted(nodes)))}")
        moves = _draining(_partitions(admin, []), broker, nodes, lambda topics: _led_as_one(admin, topics))
        if moves and not dry_run:
            admin.alter_partition_reassignments(moves)
    rows = [(*tp, " ".join(map(str, replicas))) for tp, replicas in sorted(moves.items())]
    output.table(["topic", "partition", "moves to"], rows)
    if dry_run:
        output.warn("nothing was changed: this is a dry run")
    return 0


def _led_as_one(admin: Admin, topics: Sequence[str]) -> set[str]:
    """Those of some topics whose partitions have one leader: of gateways, with the mapping `virtual`."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    found = admin.describe_configs(resources) if resources else {}
    return {
        resource.name
        for resource, entries in found.items()
        if "htp.mapping" in entries and entries["htp.mapping"].value == "virtual"
    }


def _draining(
    partitions: Sequence[PartitionInfo], broker: int, nodes: set[int], led_as_one: Callable[[Sequence[str]], set[str]]
) -> dict[TopicPartition, list[int]]:
    """The brokers of each partition that has to move."""
    holds = Counter(node.id for info in partitions for node in info.replicas)
    leaving = [info for info in partitions if any(node.id == broker for node in info.replicas)]
    together = led_as_one(sorted({info.topic for info in leaving}))
    chosen: dict[str, int] = {}
    moves: dict[TopicPartition, list[int]] = {}
    for info in leaving:
        replicas = [node.id for node in info.replicas]
        free = nodes - set(replicas)
        if not free:
            raise UsageError(f"{info.topic_partition} is at all brokers already: there is none to move it to")
        target = min(free, key=lambda node: (holds[node], node))
        if info.topic in together:
            target = chosen.setdefault(info.topic, target)
        holds[target] += 1
        moves[info.topic_partition] = [target if node == broker else node for node in replicas]
    return moves
