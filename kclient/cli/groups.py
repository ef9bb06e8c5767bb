"""`kclient groups`: list, describe with lag, reset, delete; members, and removing them."""

from __future__ import annotations

from collections.abc import Mapping

from kclient.admin import OffsetReset, OffsetSpec, PartitionLag
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.places import partitions_at
from kclient.cli.settings import check_group, milliseconds
from kclient.cli.sheets import Sheet, sheet_of, tell_missing
from kclient.sync import Admin
from kclient.types import TopicPartition

_STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady",
    "Unknown",
)  # fmt: skip
"""Of groups of every kind; Kafka's brokers ignore a state that they do not know."""


def list_groups(settings: dict[str, object], *, states: list[str]) -> int:
    """Print the groups."""
    known = {state.lower(): state for state in _STATES}
    for state in states:
        if state.lower() not in known:
            raise UsageError(f"--state is one of {', '.join(_STATES)}, not {state!r}")
    with Admin(settings) as admin:
        groups = admin.list_groups(states=[known[state.lower()] for state in states])
    if output.is_terminal():
        rows = [(group.group_id, group.state, group.protocol_type) for group in groups]
        output.table(["group", "state", "protocol"], rows)
    else:
        output.table(["group"], [(group.group_id,) for group in groups])
    return tell_missing(groups.errors)


def describe(group_id: str, settings: dict[str, object]) -> int:
    """Print how far the group is behind, and who reads what."""
    with Admin(settings) as admin:
        group = admin.describe_groups([group_id])[group_id]
        lags = admin.group_lag(group_id)
    members = len(group.members)
    title = (
        f"{group_id}: {group.state}, {members} member{'' if members == 1 else 's'}, {group.assignor or 'no'} assignor"
    )
    columns = ["topic", "partition", "committed", "end", "lag", "member", "client", "host"]
    output.table(columns, [_lag_row(partition, lag) for partition, lag in sorted(lags.items())], title=title)
    idle = [member for member in group.members if not member.assignment]
    if idle and output.is_terminal():
        output.line(f"without partitions: {', '.join(member.member_id for member in idle)}")
    return 0


def _lag_row(partition: TopicPartition, lag: PartitionLag) -> tuple[object, ...]:
    member = lag.member
    return (
        *partition,
        lag.committed,
        lag.end,
        lag.lag,
        None if member is None else member.member_id,
        None if member is None else member.client_id,
        None if member is None else member.host,
    )


def reset(
    group_id: str,
    settings: dict[str, object],
    *,
    earliest: bool,
    latest: bool,
    offset: int | None,
    time: str | None,
    topics: list[str],
    execute: bool,
) -> int:
    """Print where the group would go, and with `execute` move it there."""
    check_group(group_id)
    if sum((earliest, latest, offset is not None, time is not None)) != 1:
        raise UsageError("say where to: one of --to-earliest, --to-latest, --to-offset and --to-time")
    moment = None if time is None else milliseconds(time, "--to-time", "--to-earliest goes to the oldest record")
    with Admin(settings) as admin:
        partitions = _partitions(admin, group_id, topics)
        target: OffsetSpec | int | Mapping[TopicPartition, int]
        if offset is not None:
            target = _within_logs(admin, partitions, offset)
        elif moment is not None:
            target = moment
        else:
            target = OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST
        resets = admin.reset_group_offsets(group_id, target, partitions, dry_run=not execute)
    output.table(["topic", "partition", "before", "after"], [_reset_row(*item) for item in sorted(resets.items())])
    if not execute:
        output.warn("nothing was changed: this is a dry run, add --execute")
    return 0


def _within_logs(admin: Admin, partitions: list[TopicPartition], offset: int) -> dict[TopicPartition, int]:
    """The offset in each partition, or the nearest that there is."""
    starts = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    found: dict[TopicPartition, int] = {}
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        least, greatest = start.offset if start else 0, end.offset if end else 0
        found[partition] = min(max(offset, least), greatest)
        if found[partition] != offset:
            output.warn(
                f"{partition} holds the offsets {least} to {greatest}: {found[partition]} is taken, not {offset}"
            )
    return found


def _reset_row(partition: TopicPartition, reset: OffsetReset) -> tuple[object, ...]:
    return (*partition, reset.before, reset.after)


def _partitions(admin: Admin, group_id: str, topics: list[str]) -> list[TopicPartition]:
    """What is reset: the topics named (`TOPIC` or `TOPIC:PARTITION`), else all that the group has committed."""
    if not topics:
        committed = list(admin.list_group_offsets(group_id))
        if not committed:
            raise UsageError(f"the group {group_id!r} has committed nothing: name the topics with --topic")
        return committed
    return partitions_at(admin, topics, "--topic")


def members(admin: Admin, group_id: str) -> Sheet:
    """The members of a group."""
    group = admin.describe_groups([group_id])[group_id]
    rows = [
        {
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": [str(each) for each in sorted(member.assignment)],
        }
        for member in sorted(group.members, key=lambda member: (member.group_instance_id or "", member.member_id))
    ]
    title = f"{group_id}: {group.state}, {len(rows)} members"
    return sheet_of(title, ["member", "instance", "client", "host", "partitions"], rows, "members")


def remove_members(
    group_id: str, instances: list[str], settings: dict[str, object], *, every: bool, reason: str | None
) -> int:
    """Remove static members, or all."""
    check_group(group_id)
    if every == bool(instances):
        raise UsageError("say which members: --instance ID (any number of times), or --all")
    if "" in instances:
        raise UsageError("a group.instance.id is not empty")
    instances = list(dict.fromkeys(instances))
    with Admin(settings) as admin:
        admin.remove_members_from_consumer_group(group_id, None if every else instances, reason=reason)
    output.note(f"removed from {group_id}: {'all members' if every else ', '.join(instances)}")
    return 0


def delete(group_ids: list[str], settings: dict[str, object]) -> int:
    """Delete groups and their offsets."""
    group_ids = list(dict.fromkeys(group_ids))
    with Admin(settings) as admin:
        admin.delete_groups(group_ids)
    output.note(f"deleted: {', '.join(group_ids)}")
    return 0
