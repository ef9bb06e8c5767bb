"""What errors mean to a transaction that processes records, by their kind (KIP-1050)."""

from __future__ import annotations

from typing import Final

from kclient.errors import (
    CommitFailedError,
    CorruptRecordError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TransactionAbortableError,
    TransactionAbortedError,
)

_PASSES: Final = frozenset(
    {
        # the group has gone on: what is processed next is what the member then has
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
        # the producer has a new epoch after the abort
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


def passes(error: BaseException | None) -> bool:
    """Whether the same records may succeed in another transaction of the same producer."""
    if not isinstance(error, KafkaError) or error.fatal:
        return False
    if isinstance(error, TransactionAbortableError | CommitFailedError) and error.__cause__ is not None:
        return passes(error.__cause__)
    if isinstance(error, CorruptRecordError):
        return False  # what is stored damaged remains so
    if error.retriable or isinstance(error, CommitFailedError):
        return True
    # the producer's own, such as that a broker has forgotten it, have neither code nor class
    return error.code in _PASSES or type(error) is KafkaError


def is_about_the_transaction(error: Exception) -> bool:
    """Whether sending failed for a reason that is not the record's."""
    return isinstance(error, KafkaError) and (
        error.fatal
        or error.retriable
        or isinstance(error, TransactionAbortableError | TransactionAbortedError | IllegalStateError)
    )
