"""`kclient cluster`: which brokers there are, who leads what, what is being moved and why; move and drain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from kclient.admin import (
    ConfigResource,
    ConfigResourceType,
    PartialFailureError,
    PartitionReassignment,
    TopicDescription,
)
from kclient.cli import gateways, output
from kclient.cli.errors import UsageError
from kclient.cli.places import described_at
from kclient.cli.sheets import Sheet, sheet_of
from kclient.errors import UnknownTopicOrPartitionError
from kclient.sync import Admin
from kclient.types import PartitionInfo, TopicPartition

_TOLD = 10
"""Partitions that are named after they were moved, at most."""
_AT_ONCE = 500
"""Topics that are asked about in one request."""

Moves = Mapping[TopicPartition, PartitionReassignment]


def status(admin: Admin) -> Sheet:
    """The brokers, and how many partitions each leads, has, is given and gives away.

    What it coordinates are the partitions of Kafka's own topics that it leads: each stands for some groups, or
    transactional ids.
    """
    cluster = admin.describe_cluster()
    told = gateways.standings(admin, [node.id for node in cluster.nodes])
    moves = admin.list_partition_reassignments()
    leads, holds, coordinates = Counter[int](), Counter[int](), Counter[int]()
    nodes = {node.id: node for node in cluster.nodes}
    internal = {topic.name for topic in admin.list_topics(include_internal=True) if topic.is_internal}
    for info in _partitions(admin, [], internal=True):
        if info.topic in internal and info.leader is not None:
            coordinates[info.leader.id] += 1
        if told and info.topic in internal:  # of gateways nothing lies in them
            continue
        for node in info.replicas:  # which may be at a broker that is away
            nodes.setdefault(node.id, node)
        holds.update(node.id for node in info.replicas)
        if info.leader is not None:
            leads[info.leader.id] += 1
    coming = Counter(node for move in moves.values() for node in move.adding_replicas)
    going = Counter(node for move in moves.values() for node in move.removing_replicas)
    controller = None if cluster.controller is None else cluster.controller.id
    brokers = [
        {
            "broker": node.id,
            "address": f"{node.host}:{node.port}" if node.host else None,
            "rack": node.rack,
            "controller": node.id == controller,
            "leads": leads[node.id],
            "has": holds[node.id],
            "coming": coming[node.id],
            "going": going[node.id],
            "coordinates": coordinates[node.id],
        }
        | ({} if not told else gateways.shown(told.get(node.id)))
        for node in sorted(nodes.values(), key=lambda node: node.id)
    ]
    columns = ["broker", "address", "rack", "controller", "leads", "has", "coming", "going", "coordinates"]
    if told:
        columns = [*columns, *gateways.COLUMNS]
    fields = {"cluster": cluster.cluster_id, "moves": len(moves), "brokers": brokers}
    title = f"cluster {cluster.cluster_id}, {len(moves)} partitions are being moved"
    return Sheet(title, columns, [[broker[column] for column in columns] for broker in brokers], fields)


def describe(admin: Admin, names: Sequence[str]) -> Sheet:
    """Each partition: who leads it under which epoch, who has it, and where it is being moved; of gateways also why."""
    moves: Moves = admin.list_partition_reassignments()
    told = gateways.standings(admin, [node.id for node in admin.describe_cluster().nodes])
    causes = gateways.causes(told)
    drained = _drained(admin, moves) if "by hand" in causes.values() else frozenset()
    partitions = []
    for info in _partitions(admin, names, internal=not told):
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
        if told:
            cause = causes.get(info.leader_epoch) if info.leader_epoch is not None else None
            if cause == "by hand" and move is not None and drained.intersection(move.removing_replicas):
                cause = f"drained {move.removing_replicas[0]}"
            standing = None if info.leader is None else told.get(info.leader.id)
            partitions[-1] |= {**gateways.shown(standing), "why": cause}
    columns = ["topic", "partition", "leader", "epoch", "replicas", "in sync", "coming", "going"]
    title = f"{len(partitions)} partitions"
    if not told:
        return sheet_of(title, columns, partitions, "partitions")
    return sheet_of(title, [*columns, *gateways.COLUMNS, "why"], partitions, "partitions")


def _drained(admin: Admin, moves: Moves) -> frozenset[int]:
    """Brokers that give partitions away and lead none any more."""
    going = {node for move in moves.values() for node in move.removing_replicas}
    if going:
        going -= {info.leader.id for info in _partitions(admin, [], internal=False) if info.leader is not None}
    return frozenset(going)


def _partitions(admin: Admin, names: Sequence[str], *, internal: bool) -> list[PartitionInfo]:
    """Those of some topics, or of all, in order; of Kafka's own too, if `internal`: gateways have nothing in them."""
    wanted = sorted(set(names)) or sorted(topic.name for topic in admin.list_topics(include_internal=internal))
    found: list[PartitionInfo] = []
    for first in range(0, len(wanted), _AT_ONCE):
        some = wanted[first : first + _AT_ONCE]
        described = admin.describe_topics(some) if names else _those_there(admin, some)
        for name in some:
            if name in described:
                found += sorted(described[name].partitions, key=lambda info: info.partition)
    return found


def _those_there(admin: Admin, names: Sequence[str]) -> Mapping[str, TopicDescription]:
    """Some topics, without those that have been deleted since they were listed."""
    while names:
        try:
            return admin.describe_topics(names)
        except (UnknownTopicOrPartitionError, PartialFailureError):
            listed = {topic.name for topic in admin.list_topics(include_internal=True)}
            left = [name for name in names if name in listed]
            if len(left) == len(names):
                raise
            names = left
    return {}


def move(places: Sequence[str], settings: dict[str, object], *, to: str, change_number: bool) -> int:
    """Have partitions (`TOPIC:PARTITION`), or all of a topic, move to other brokers.

    Unless the number of replicas may change, it is refused where there are more of a partition, or fewer.
    """
    replicas = [_broker(text, "--to") for text in to.split(",")]
    with Admin(settings) as admin:
        found = described_at(admin, places)
        wanted = [info.topic_partition for info in found]
        moves = {} if change_number else admin.list_partition_reassignments(wanted)
        for info in found:
            there = len(info.replicas)
            if (move := moves.get(info.topic_partition)) is not None:
                there = len(move.replicas) - len(move.removing_replicas)
            if there != len(replicas) and not change_number:
                raise UsageError(
                    f"{info.topic_partition} has {_replicas(there)}, and --to={to} names {_replicas(len(replicas))}: "
                    "name as many, or give --allow-replication-factor-change"
                )
        admin.alter_partition_reassignments(dict.fromkeys(wanted, replicas))
    more = f" and {len(wanted) - _TOLD} more" if len(wanted) > _TOLD else ""
    output.note(f"moving to {to}: {', '.join(map(str, wanted[:_TOLD]))}{more}")
    return 0


def _replicas(number: int) -> str:
    return f"{number} replica{'' if number == 1 else 's'}"


def _broker(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{option} is the number of a broker, or several with commas, not {text!r}")
    return int(text)


def drain(brokers: Sequence[int], settings: dict[str, object], *, dry_run: bool) -> int:
    """Have all partitions that some brokers have move to the others, to those that have the fewest.

    With those of Kafka's own topics go groups and transactions, also at gateways.
    """
    with Admin(settings) as admin:
        nodes = {node.id for node in admin.describe_cluster().nodes}
        partitions = _partitions(admin, [], internal=True)  # with those that groups and transactions go by
        known = nodes.union(node.id for info in partitions for node in info.replicas)  # one may be away
        for broker in brokers:
            if broker not in known:
                raise UsageError(f"there is no broker {broker}: there are {', '.join(map(str, sorted(nodes)))}")
        moves = _draining(partitions, set(brokers), nodes, lambda topics: _led_as_one(admin, topics))
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
    partitions: Sequence[PartitionInfo],
    drained: set[int],
    nodes: set[int],
    led_as_one: Callable[[Sequence[str]], set[str]],
) -> dict[TopicPartition, list[int]]:
    """The brokers of each partition that has to move."""
    holds = Counter(node.id for info in partitions for node in info.replicas)
    leaving = [info for info in partitions if any(node.id in drained for node in info.replicas)]
    together = led_as_one(sorted({info.topic for info in leaving}))
    chosen: dict[str, int] = {}
    moves: dict[TopicPartition, list[int]] = {}
    for info in leaving:
        replicas = [node.id for node in info.replicas]
        for place, broker in enumerate(replicas):
            if broker not in drained:
                continue
            free = nodes - drained - set(replicas)
            if not free:
                raise UsageError(f"{info.topic_partition} is at all other brokers already: there is none to move it to")
            target = min(free, key=lambda node: (holds[node], node))
            if info.topic in together:
                target = chosen.setdefault(info.topic, target)
            holds[target] += 1
            replicas[place] = target
        moves[info.topic_partition] = replicas
    return moves
