"""The answer to Produce: made while batches are appended, and sent when they have come as far as `acks` asks for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final

from kclient.concurrency import Completion
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.append import Append, AppendState
from kclient.gateway.contents import RejectedRecordsError
from kclient.gateway.error_codes import code_of, text_of
from kclient.memory_ledger import LimitedAccount
from kclient.net.answers import CloseConnectionError
from kclient.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse

logger: logging.Logger = logging.getLogger("kclient.gateway.produce")

_STORAGE_ERRORS_SINCE: Final = 4
_RECORD_ERRORS_SINCE: Final = 8


class PendingReply(Completion[ProduceResponse | None]):
    """The answer of a request whose batches are on their way: it comes with the last of them, or by its timeout."""

    __slots__ = ("_begun", "_made", "_next", "_response", "_rows", "_silent", "_version", "deadline", "outlives")

    def __init__(self, response: ProduceResponse, silent: bool, version: int) -> None:
        super().__init__()
        self.deadline: float = float("inf")
        self._response = response
        self._rows: dict[int, PartitionProduceResponse] = {}
        self._silent = silent
        self._version = version
        self._begun = False
        self._made: deque[tuple[Append, AppendState, int]] = deque()
        self._next: Completion[None] | None = None
        self.outlives: list[tuple[Append, int, LimitedAccount]] = []
        """Batches that are not stored, which may outlive the request, their sizes, and where they count then."""

    def add(self, row: PartitionProduceResponse, append: Append, wanted: AppendState) -> None:
        """Wait for one more batch."""
        key = id(row)
        self._rows[key] = row
        append.watch(wanted, lambda: self._settled(key, append))

    def hold(self, append: Append, wanted: AppendState, size: int) -> None:
        """A batch that was made anew takes so many bytes until it has come far enough."""
        self._made.append((append, wanted, size))

    def freed(self) -> Completion[None] | int | None:
        """What comes free of batches that were made anew, as bytes below 0; else what to wait for before it is asked
        again; None if there is none of them."""
        if not self._made:
            return None
        append, wanted, size = self._made[0]
        if append.state >= wanted:
            self._made.popleft()
            return -size
        self._next = Completion()
        return self._next

    def outlive(self, append: Append, size: int, account: LimitedAccount) -> None:
        """A batch of so many bytes is not stored: it counts there when the request is over, or its client has gone."""
        self.outlives.append((append, size, account))

    def outlived(self) -> None:
        """The request counts no more: those of its batches do that are not stored."""
        outlives, self.outlives = self.outlives, []
        for append, size, account in outlives:
            if append.state < AppendState.STORED:
                account.add(size)
                append.watch(AppendState.STORED, partial(account.add, -size))

    def is_over(self) -> bool:
        """No more are added: whether there is nothing to wait for."""
        self._begun = True
        return not self._rows

    def _settled(self, key: int, append: Append) -> None:
        row = self._rows.pop(key, None)
        if row is None:
            return  # the time was over before
        put(row, append, self._version)
        following, self._next = self._next, None
        if following is not None:
            following.set_result(None)
        if not self._rows and self._begun:
            self._complete()

    def give_up(self) -> None:
        """Answer with what is known."""
        self.outlived()
        for row in self._rows.values():
            row.error_code = ErrorCode.REQUEST_TIMED_OUT
            row.error_message = "not durable within the request's timeout"
            row.base_offset = -1
        self._rows.clear()
        self._complete()

    def _complete(self) -> None:
        try:
            self.set_result(self.response())
        except CloseConnectionError as error:
            self.set_error(error)

    def response(self) -> ProduceResponse | None:
        """The answer, if there is to be one."""
        return told(self._response, self._silent)


def told(response: ProduceResponse, silent: bool) -> ProduceResponse | None:
    """The answer. With acks=0 there is none, so that a closed connection has to tell of errors, as in Kafka."""
    if not silent:
        return response
    for row in _rows(response):
        if row.error_code:
            raise CloseConnectionError(f"a batch produced with acks=0 was refused: {row.error_message}")
    return None


def put(row: PartitionProduceResponse, append: Append, version: int) -> None:
    """Say what has become of a batch."""
    if append.error is not None:
        put_error(row, append.error, version)
        return
    row.base_offset = append.base_offset
    row.log_append_time_ms = append.timestamp


def put_error(row: PartitionProduceResponse, error: KafkaError, version: int) -> None:
    """Say why a batch is refused; which of its records were at fault from version 8 on (KIP-467)."""
    row.error_code = code_of(error)
    if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERRORS_SINCE:
        row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # older producers try again after this one alone
    row.error_message = text_of(error.message)
    row.base_offset = -1
    if isinstance(error, RejectedRecordsError) and version >= _RECORD_ERRORS_SINCE:
        row.record_errors = [
            BatchIndexAndErrorMessage(
                batch_index=number, batch_index_error_message=None if text is None else text_of(text)
            )
            for number, text in error.records
        ]
    logger.debug("a batch for partition %d is refused: %s", row.index, error)


def _rows(response: ProduceResponse) -> Iterator[PartitionProduceResponse]:
    for topic in response.responses:
        yield from topic.partition_responses
