"""Looking at transactions: DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import logging
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode, KafkaError, TransactionalIdNotFoundError
from kclient.gateway.error_codes import Role, code_of
from kclient.gateway.handlers._work import counted, rows_for
from kclient.gateway.handlers.handler import Begun, Finish, Handler, VersionRange
from kclient.gateway.patterns import LinearPattern
from kclient.gateway.transaction_states import CoordinatedState
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.transaction import Transaction
    from kclient.gateway.transactions.coordinator import TransactionCoordinator

logger: logging.Logger = logging.getLogger("kclient.gateway.transactions")

_PER_ID: Final = 1000
"""About how many bytes of memory an id takes until the request is answered."""


class DescribeTransactionsHandler(Handler):
    """Tells the state of transactions."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_TRANSACTIONS
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, transactions: TransactionCoordinator, topics: TopicTable) -> None:
        self._access = access
        self._transactions = transactions
        self._topics = topics

    def begin(self, request: DescribeTransactionsRequest, context: RequestContext) -> Begun:
        """Look each of them up."""
        sizes = repeat(_PER_ID, len(request.transactional_ids))
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(
        self, request: DescribeTransactionsRequest, client: ConnectionContext
    ) -> DescribeTransactionsResponse:
        rows, pace = [], Pace(client.flow)
        for transactional_id in dict.fromkeys(request.transactional_ids):  # each once: it may have many partitions
            await pace.pause()
            try:
                self._access.check(client, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
                found = await self._transactions.table.get(transactional_id)
                if found is None:
                    raise TransactionalIdNotFoundError(f"there is no transactional.id {transactional_id[:300]!r}")
                rows.append(await self._row(found, client, pace))
            except KafkaError as error:
                rows.append(_nothing(transactional_id, code_of(error, self.ROLE)))
        return DescribeTransactionsResponse(transaction_states=rows)

    async def _row(
        self, found: Transaction, client: ConnectionContext, pace: Pace
    ) -> DescribeTransactionsResponseTransactionState:
        topics: dict[str, list[int]] = {}
        state = found.state.value
        for each in sorted(found.partitions):
            await pace.pause()
            record = self._topics.by_id(each.topic_id)
            if record is None:
                continue  # deleted
            if self._access.allows(client, AclOperation.DESCRIBE, ResourceType.TOPIC, record.name):
                topics.setdefault(record.name, []).append(each.partition)
        return DescribeTransactionsResponseTransactionState(
            error_code=ErrorCode.NONE,
            transactional_id=found.transactional_id,
            transaction_state=state,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer.producer_id,
            producer_epoch=found.producer.epoch,
            topics=[
                DescribeTransactionsResponseTopicData(topic=name, partitions=numbers)
                for name, numbers in topics.items()
            ],
        )

    def fail(
        self, request: DescribeTransactionsRequest, context: RequestContext, error: KafkaError
    ) -> DescribeTransactionsResponse:
        """The same error for each."""
        code = code_of(error, self.ROLE)
        return DescribeTransactionsResponse(
            transaction_states=rows_for(request.transactional_ids, partial(_nothing, code=code))
        )


def _nothing(transactional_id: str, code: int) -> DescribeTransactionsResponseTransactionState:
    return DescribeTransactionsResponseTransactionState(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=[],
    )


class ListTransactionsHandler(Handler):
    """Lists the transactions that are coordinated here."""

    API: ClassVar[ApiKey] = ApiKey.LIST_TRANSACTIONS
    VERSIONS: ClassVar[VersionRange] = (0, 2)
    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, transactions: TransactionCoordinator) -> None:
        self._access = access
        self._transactions = transactions

    def begin(self, request: ListTransactionsRequest, context: RequestContext) -> Finish:
        """Go through their rows, in pages. Raises `InvalidRegularExpressionError` for a pattern that is none."""
        text = request.transactional_id_pattern
        return partial(self._finish, request, context.connection, LinearPattern(text) if text else None)

    def fail(
        self, request: ListTransactionsRequest, context: RequestContext, error: KafkaError
    ) -> ListTransactionsResponse:
        """The error, which has no place for a text: what is wrong with a pattern is in the log at DEBUG."""
        logger.debug("ListTransactions of %s is refused: %s", context.connection.principal, error)
        return ListTransactionsResponse(error_code=code_of(error, self.ROLE))

    async def _finish(
        self, request: ListTransactionsRequest, client: ConnectionContext, pattern: LinearPattern | None
    ) -> ListTransactionsResponse | None:
        names = {state.value for state in CoordinatedState}
        wanted = set(request.state_filters)
        response = ListTransactionsResponse(unknown_state_filters=sorted(wanted - names))
        if wanted and not wanted & names:
            return response
        ids = set(request.producer_id_filters)

        def look(found: Transaction) -> None:
            if (wanted and found.state.value not in wanted) or (ids and found.producer.producer_id not in ids):
                return
            if request.duration_filter >= 0 and not self._transactions.open_for(found, request.duration_filter):
                return
            name = found.transactional_id
            if self._access.allows(client, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
                response.transaction_states.append(
                    ListTransactionsResponseTransactionState(
                        transactional_id=name,
                        producer_id=found.producer.producer_id,
                        transaction_state=found.state.value,
                    )
                )

        await self._transactions.table.look_through(look)
        if pattern is not None:
            rows, pace = response.transaction_states, Pace(client.flow)
            response.transaction_states = []
            for row in rows:
                if pace.over:
                    await pace.pause()
                    if client.gone:
                        return None
                if await _matches(pattern, row.transactional_id, pace):
                    response.transaction_states.append(row)
        return response


async def _matches(pattern: LinearPattern, name: str, pace: Pace) -> bool:
    steps = pattern.steps(name)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
        await pace.pause()
