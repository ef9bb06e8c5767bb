"""What the errors of a transaction's requests mean: by request and code, in the kinds of KIP-1050."""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING, Final

from kclient.errors import (
    ApplicationRecoverableError,
    ErrorCode,
    KafkaError,
    ProducerFencedError,
    RefreshCoordinatorError,
    UnsupportedVersionError,
    error_class,
    error_for,
)
from kclient.state_tables import PlainEnum

if TYPE_CHECKING:
    from collections.abc import Mapping


class TransactionRequest(PlainEnum):
    """The requests of a transactional producer; the values are their names in messages."""

    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    OFFSET_COMMIT = "TxnOffsetCommit"
    END = "EndTxn"
    PRODUCE = "Produce"


class ErrorKind(PlainEnum):
    """What to do about an error (KIP-1050)."""

    RETRIABLE = auto()
    """Ask again."""
    REFRESH_RETRIABLE = auto()
    """Look the coordinator up, then ask again."""
    ABORTABLE = auto()
    """This transaction has to be aborted; the producer can go on."""
    APPLICATION_RECOVERABLE = auto()
    """A new producer can go on."""
    INVALID_CONFIGURATION = auto()
    """Something has to be set, granted or installed differently, or is a bug; this producer cannot go on."""


FATAL: Final = frozenset({ErrorKind.APPLICATION_RECOVERABLE, ErrorKind.INVALID_CONFIGURATION})
"""After these the producer takes no more calls."""

_FENCED: Final[dict[int, ErrorKind]] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorKind.APPLICATION_RECOVERABLE,
    ErrorCode.PRODUCER_FENCED: ErrorKind.APPLICATION_RECOVERABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorKind.APPLICATION_RECOVERABLE,
}
_GROUP: Final[dict[int, ErrorKind]] = dict.fromkeys(
    (
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ),
    ErrorKind.ABORTABLE,
)
GONE_FROM_GROUP: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""The group goes on without the member whose offsets they are (KIP-447)."""

ERROR_TABLE: Final[Mapping[TransactionRequest, Mapping[int, ErrorKind]]] = {
    TransactionRequest.INIT_PRODUCER_ID: {
        **_FENCED,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorKind.RETRIABLE,
        ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.APPLICATION_RECOVERABLE,
    },
    TransactionRequest.ADD_PARTITIONS: {
        **_FENCED,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorKind.RETRIABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorKind.RETRIABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: ErrorKind.ABORTABLE,
        ErrorCode.OPERATION_NOT_ATTEMPTED: ErrorKind.ABORTABLE,
        ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.ABORTABLE,
        ErrorCode.INVALID_TXN_STATE: ErrorKind.INVALID_CONFIGURATION,
    },
    TransactionRequest.ADD_OFFSETS: {
        **_FENCED,
        **_GROUP,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorKind.RETRIABLE,
        ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.ABORTABLE,
        ErrorCode.INVALID_TXN_STATE: ErrorKind.INVALID_CONFIGURATION,
    },
    TransactionRequest.OFFSET_COMMIT: {
        **_FENCED,
        **_GROUP,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorKind.RETRIABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorKind.RETRIABLE,
        ErrorCode.REQUEST_TIMED_OUT: ErrorKind.REFRESH_RETRIABLE,
        ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.ABORTABLE,
        ErrorCode.INVALID_TXN_STATE: ErrorKind.INVALID_CONFIGURATION,
    },
    TransactionRequest.END: {
        **_FENCED,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorKind.RETRIABLE,
        ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.ABORTABLE,
        ErrorCode.INVALID_TXN_STATE: ErrorKind.INVALID_CONFIGURATION,
    },
    TransactionRequest.PRODUCE: {
        ErrorCode.PRODUCER_FENCED: ErrorKind.APPLICATION_RECOVERABLE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorKind.APPLICATION_RECOVERABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorKind.INVALID_CONFIGURATION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorKind.INVALID_CONFIGURATION,
    },
}
"""What is not what the class of the error says."""


def kind_of(request: TransactionRequest, error: KafkaError) -> ErrorKind:
    """What an error of a request, or the failure of a delivery (`PRODUCE`), means for the transaction."""
    if error.code is not None and (found := ERROR_TABLE[request].get(error.code)) is not None:
        return found
    if request is TransactionRequest.PRODUCE:
        return ErrorKind.INVALID_CONFIGURATION if isinstance(error, UnsupportedVersionError) else ErrorKind.ABORTABLE
    if isinstance(error, RefreshCoordinatorError):
        return ErrorKind.REFRESH_RETRIABLE
    if error.retriable:
        return ErrorKind.RETRIABLE
    if isinstance(error, ApplicationRecoverableError):
        return ErrorKind.APPLICATION_RECOVERABLE
    return ErrorKind.INVALID_CONFIGURATION


def error_of(request: TransactionRequest, code: int, transactional_id: str, subject: str = "") -> KafkaError:
    """The exception for an error code of a coordinator.

    Args:
        request: What it answered.
        code: The code, not 0.
        transactional_id: Of the producer.
        subject: What it is about, if not the whole request: a partition.
    """
    if ERROR_TABLE[request].get(code) is ErrorKind.APPLICATION_RECOVERABLE and code in {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    }:
        return ProducerFencedError(
            f"{request.value}: the transactional.id {transactional_id!r} belongs to a newer producer, or the "
            "transaction took longer than transaction.timeout.ms; close this producer"
        )
    about = f"{request.value} of {transactional_id!r}{f' for {subject}' if subject else ''}"
    return error_for(code, f"{about}: {error_class(code)(None).message}")
