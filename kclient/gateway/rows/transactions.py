"""The row of a transactional id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kclient.gateway.partition_id import PartitionId
from kclient.gateway.transaction import LAST_EPOCH, ProducerIdentity, Transaction
from kclient.gateway.transaction_states import PREPARED, CoordinatedState
from kclient.htp.rows import dump, object_of_format, seal, string, unsealed, whole
from kclient.records.bounds import INT32_MAX, INT64_MAX

_FORMAT: Final = 1
_STATES: Final = {state.value: state for state in CoordinatedState if state is not CoordinatedState.DEAD}
_TOPIC_ID: Final = 16


def encode_transaction(transaction: Transaction) -> bytes:
    """The row."""
    partitions: dict[str, list[int]] = {}
    for each in sorted(transaction.partitions):
        partitions.setdefault(each.topic_id.hex(), []).append(each.partition)
    return seal(
        dump(
            {
                "format": _FORMAT,
                "id": transaction.transactional_id,
                "state": transaction.state.value,
                "producer": transaction.producer,
                "last": transaction.last,
                "marker": transaction.marker,
                "version": transaction.version,
                "timeout": transaction.timeout_ms,
                "start": transaction.start_ms,
                "update": transaction.update_ms,
                "partitions": partitions,
                "groups": sorted(transaction.groups),
            }
        )
    )


def decode_transaction(value: bytes, transactional_id: str) -> Transaction:
    """What a row says.

    Raises:
        ValueError: If it is none, one of another id, or one of a newer version.
    """
    try:
        row = object_of_format(unsealed(value), _FORMAT)
        if string(row["id"]) != transactional_id:
            raise ValueError(f"it is the row of transactional.id {row['id']!r}")
        state = _STATES[row["state"]]
        producer = _identity(row["producer"])
        if producer is None:
            raise ValueError("it names no producer")
        found = Transaction(
            transactional_id,
            state,
            producer,
            whole(row["timeout"], 0, INT32_MAX),
            whole(row["update"]),
            _identity(row["last"]),
            _identity(row["marker"]),
            whole(row["version"], 1, 2),
            whole(row["start"], -1),
            frozenset(_partitions(row["partitions"].items())),
            frozenset(string(each) for each in row["groups"]),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{value[:200]!r}: {error!r}") from error
    if (found.marker is not None) is not (state in PREPARED):
        raise ValueError(f"{value[:200]!r}: the ends are written under {found.marker} in state {state.value}")
    return found


def _identity(found: Any) -> ProducerIdentity | None:
    if found is None:
        return None
    producer_id, epoch = found
    return ProducerIdentity(whole(producer_id, 0, INT64_MAX), whole(epoch, -1, LAST_EPOCH + 1))


def _partitions(topics: Iterable[tuple[str, list[int]]]) -> Iterable[PartitionId]:
    for topic_id, numbers in topics:
        key = bytes.fromhex(topic_id)
        if len(key) != _TOPIC_ID:
            raise ValueError(f"{topic_id!r} is not a topic id")
        for number in numbers:
            yield PartitionId(key, whole(number, 0, INT32_MAX))
