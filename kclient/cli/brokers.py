"""`kclient cluster log-dirs` and `quorum`: where brokers keep what they have, and who keeps the cluster's metadata."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kclient.admin import LogDirDescription, QuorumReplica
from kclient.cli.errors import reason_of
from kclient.cli.sheets import Sheet, moment, sheet_of
from kclient.sync import Admin

_DIRECTORY = ["broker", "directory", "replicas", "bytes", "moving in", "free", "of", "state"]
_REPLICA = ["broker", "directory", "topic", "partition", "bytes", "lag", "moving in"]
_VOTER = ["node", "role", "directory id", "log end", "lag", "last fetch", "caught up", "listens at"]


def log_dirs(admin: Admin, brokers: Collection[int], topics: Sequence[str], *, replicas: bool) -> Sheet:
    """The log directories of some brokers, or of all; or each replica in them."""
    partitions = None
    if topics:
        described = admin.describe_topics(topics)
        partitions = [info.topic_partition for one in described.values() for info in one.partitions]
    found = admin.describe_log_dirs(brokers or None, partitions=partitions)
    if replicas:
        rows = [row for directory in found for row in _replicas(directory)]
        sheet = sheet_of(f"{len(rows)} replicas", _REPLICA, rows, "replicas")
    else:
        rows = [_directory(directory) for directory in found]
        sheet = sheet_of(f"{len(rows)} log directories", _DIRECTORY, rows, "log_dirs")
    return sheet._replace(missing=found.errors)


def _directory(directory: LogDirDescription) -> dict[str, object]:
    state = "online"
    if directory.error is not None:
        state = reason_of(directory.error)
    elif directory.is_cordoned:
        state = "cordoned"
    return {
        "broker": directory.broker_id,
        "directory": directory.path,
        "replicas": len(directory.replicas),
        "bytes": directory.size,
        "moving in": sum(replica.is_future for replica in directory.replicas.values()),
        "free": directory.usable_bytes,
        "of": directory.total_bytes,
        "state": state,
    }


def _replicas(directory: LogDirDescription) -> list[dict[str, object]]:
    return [
        {
            "broker": directory.broker_id,
            "directory": directory.path,
            "topic": tp.topic,
            "partition": tp.partition,
            "bytes": replica.size,
            "lag": replica.offset_lag,
            "moving in": replica.is_future,
        }
        for tp, replica in directory.replicas.items()
    ]


def quorum(admin: Admin) -> Sheet:
    """The controllers that elect and those that only read, and how far each is behind the active one."""
    found = admin.describe_metadata_quorum()
    end = max((each.log_end_offset for each in found.voters if each.replica_id == found.leader_id), default=-1)
    rows = []
    for role, replicas in (("voter", found.voters), ("observer", found.observers)):
        for each in replicas:
            active = each.replica_id == found.leader_id and role == "voter"
            at = [f"{one.host}:{one.port}" for one in found.nodes.get(each.replica_id, ())]
            rows.append(_member(each, "active" if active else role, end) | {"listens at": at})
    title = f"epoch {found.leader_epoch}, active: {found.leader_id}, committed up to {found.high_watermark}"
    fields = {
        "leader": found.leader_id, "epoch": found.leader_epoch, "high_watermark": found.high_watermark,
    }  # fmt: skip
    sheet = sheet_of(title, _VOTER, rows, "members")
    return sheet._replace(fields={**fields, **sheet.fields})


def _member(replica: QuorumReplica, role: str, end: int) -> dict[str, object]:
    known = replica.log_end_offset >= 0
    return {
        "node": replica.replica_id,
        "role": role,
        "directory id": replica.directory_id,
        "log end": replica.log_end_offset if known else None,
        "lag": max(0, end - replica.log_end_offset) if known and end >= 0 else None,
        "last fetch": moment(replica.last_fetch_timestamp),
        "caught up": moment(replica.last_caught_up_timestamp),
    }
