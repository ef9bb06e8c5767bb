"""Errors as the rows of responses carry them."""

from __future__ import annotations

from typing import Any

from kclient.errors import ErrorCode, KafkaError
from kclient.htp.errors import FencedError, HtpError, PositionError


def code_of(error: KafkaError) -> int:
    """The protocol's code of an error; what HTP reports becomes what Kafka would call it."""
    if error.code is not None:
        return error.code
    if isinstance(error, PositionError):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if isinstance(error, FencedError):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if isinstance(error, HtpError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def put_error(row: Any, error: KafkaError) -> None:
    """Say in a row of a response what went wrong, with a text where the row has room for it."""
    row.error_code = code_of(error)
    if hasattr(row, "error_message"):
        row.error_message = error.message
