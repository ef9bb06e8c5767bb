"""`kclient transactions`: list, describe, find those that hang, abort them, fence producers."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.admin import AbortTransactionSpec, ActiveProducer
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.places import partitions_at
from kclient.cli.sheets import Sheet, moment, sheet_of
from kclient.errors import KafkaError
from kclient.sync import Admin
from kclient.types import TopicPartition

_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip


def check_states(states: Sequence[str]) -> list[str]:
    """States as Kafka writes them.

    Raises:
        UsageError: There is no such state.
    """
    known = {state.lower(): state for state in _STATES}
    for state in states:
        if state.lower() not in known:
            raise UsageError(f"--state is one of {', '.join(_STATES)}, not {state!r}")
    return [known[state.lower()] for state in states]


def listed(
    admin: Admin, *, states: list[str], producer_ids: list[int], longer_than: int | None, pattern: str | None
) -> Sheet:
    """Every transactional id that fits."""
    found = admin.list_transactions(
        states=states, producer_ids=producer_ids, min_duration_ms=longer_than, transactional_id_pattern=pattern
    )
    rows = [{"id": row.transactional_id, "state": row.state, "producer id": row.producer_id} for row in found]
    sheet = sheet_of(f"{len(rows)} transactional ids", ["id", "state", "producer id"], rows, "transactions")
    return sheet._replace(missing=found.errors)


def described(admin: Admin, names: Sequence[str]) -> Sheet:
    """Ids with their producer and their present transaction."""
    rows = [
        {
            "id": one.transactional_id,
            "coordinator": one.coordinator.id,
            "state": one.state,
            "producer id": one.producer_id,
            "epoch": one.producer_epoch,
            "timeout ms": one.transaction_timeout_ms,
            "since": moment(one.transaction_start_time_ms),
            "partitions": [f"{tp.topic}:{tp.partition}" for tp in sorted(one.topic_partitions)],
        }
        for one in admin.describe_transactions(names).values()
    ]
    columns = ["id", "coordinator", "state", "producer id", "epoch", "timeout ms", "since", "partitions"]
    return sheet_of(f"{len(rows)} transactional ids", columns, rows, "transactions")


_PRODUCER = ["producer id", "epoch", "coordinator epoch", "last sequence", "last record", "transaction from"]


def _fields(tp: TopicPartition, producer: ActiveProducer) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "producer id": producer.producer_id,
        "epoch": producer.producer_epoch,
        "coordinator epoch": producer.coordinator_epoch,
        "last sequence": producer.last_sequence,
        "last record": moment(producer.last_timestamp),
        "transaction from": producer.transaction_start_offset,
    }


def producers(admin: Admin, places: Sequence[str], *, broker: int | None) -> Sheet:
    """What partitions remember of producers, and where open transactions begin."""
    told = admin.describe_producers(partitions_at(admin, places), broker_id=broker)
    rows = [_fields(tp, producer) for tp, found in sorted(told.items()) for producer in found]
    return sheet_of(f"{len(rows)} producers", ["topic", "partition", *_PRODUCER], rows, "producers")


def hanging(admin: Admin, places: Sequence[str], *, max_timeout: int) -> Sheet:
    """Open transactions that no coordinator is going to end."""
    found = admin.find_hanging_transactions(
        partitions_at(admin, places) if places else None, max_transaction_timeout_ms=max_timeout
    )
    rows = [{**_fields(tp, producer), "id": name} for tp, producer, name in found]
    title = f"{len(rows)} transactions hang"
    return sheet_of(title, ["topic", "partition", *_PRODUCER, "id"], rows, "hanging")


def abort(
    place: str,
    settings: dict[str, object],
    *,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> int:
    """End an open transaction of one partition by a marker."""
    given = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (given == (None, None, None)):
        raise UsageError("say which: by --start-offset, or by --producer-id, --producer-epoch and --coordinator-epoch")
    if ":" not in place:
        raise UsageError(f"a transaction is aborted in one partition, TOPIC:PARTITION, not {place!r}")
    with Admin(settings) as admin:
        (tp,) = partitions_at(admin, [place])
        if start_offset is not None:
            spec = _at(admin, tp, start_offset)
        elif producer_id is None or producer_epoch is None or coordinator_epoch is None:
            raise UsageError("--producer-id, --producer-epoch and --coordinator-epoch go together")
        else:
            spec = AbortTransactionSpec(tp, producer_id, producer_epoch, coordinator_epoch)
        admin.abort_transaction(spec)
    output.note(f"aborted: the transaction of producer {spec.producer_id} in {tp}")
    return 0


def _at(admin: Admin, tp: TopicPartition, start_offset: int) -> AbortTransactionSpec:
    for producer in admin.describe_producers([tp])[tp]:
        if producer.transaction_start_offset == start_offset:
            return AbortTransactionSpec.of(tp, producer)
    raise KafkaError(f"no open transaction begins at offset {start_offset} of {tp}: see kclient transactions producers")


def fence(names: list[str], settings: dict[str, object]) -> int:
    """Shut out the producers of some ids, whose open transactions are aborted."""
    with Admin(settings) as admin:
        admin.fence_producers(list(dict.fromkeys(names)))
    output.note(f"fenced: {', '.join(dict.fromkeys(names))}")
    return 0
