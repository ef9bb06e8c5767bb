"""InitProducerId: an id and epoch for an idempotent or a transactional producer."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode, InvalidRequestError, KafkaError
from kclient.gateway.access import Access
from kclient.gateway.contexts import RequestContext
from kclient.gateway.error_codes import Role, code_of
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.gateway.producer_ids import ProducerIds
from kclient.gateway.transaction import ProducerIdentity
from kclient.gateway.transactions.coordinator import TransactionCoordinator
from kclient.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from kclient.protocol.registry import ApiKey

_FENCED_SINCE: Final = 4
"""From this version on clients know PRODUCER_FENCED."""


class InitProducerIdHandler(Handler):
    """Answers InitProducerId.

    Args:
        access: Who may ask.
        producer_ids: Gives out ids.
        transactions: Their coordinator.
    """

    API: ClassVar[ApiKey] = ApiKey.INIT_PRODUCER_ID
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.PRODUCERS

    def __init__(self, access: Access, producer_ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._access = access
        self._producer_ids = producer_ids
        self._transactions = transactions

    def begin(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse | Finish:
        """Give out an id, later if a block has to be taken first."""
        if request.transactional_id is not None:
            return self._transactional(request, request.transactional_id, context)
        if not self._access.allows_any(context.connection, AclOperation.WRITE, ResourceType.TOPIC):
            self._access.check_cluster(context.connection, AclOperation.IDEMPOTENT_WRITE)
        # As in Kafka, a producer without a transactional id gets a new id each time it asks, with epoch 0.
        taken = self._producer_ids.take_nowait()
        if taken is not None:
            return InitProducerIdResponse(producer_id=taken, producer_epoch=0)
        return partial(self._finish)

    async def _finish(self) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=await self._producer_ids.take(), producer_epoch=0)

    def _transactional(self, request: InitProducerIdRequest, transactional_id: str, context: RequestContext) -> Finish:
        self._access.check(context.connection, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
        if (expected.producer_id < 0) is not (expected.epoch < 0):
            raise InvalidRequestError(f"a producer has an id and an epoch, or none of them: {expected}")
        return partial(
            self._initialize,
            transactional_id,
            None if expected.epoch < 0 else expected,
            request.transaction_timeout_ms,
            context.api_version,
        )

    async def _initialize(
        self,
        transactional_id: str,
        expected: ProducerIdentity | None,
        timeout_ms: int,
        version: int,
    ) -> InitProducerIdResponse:
        try:
            producer_id, epoch = await self._transactions.initialize(transactional_id, expected, timeout_ms)
        except KafkaError as error:
            code = code_of(error, Role.GROUPS)
            if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            return InitProducerIdResponse(error_code=code)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
