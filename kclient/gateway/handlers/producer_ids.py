"""InitProducerId: an id and epoch for an idempotent producer."""

from __future__ import annotations

import logging
from functools import partial
from typing import ClassVar

from kclient.errors import TransactionalIdAuthorizationError
from kclient.gateway.access import Access, AclOperation, ResourceType
from kclient.gateway.contexts import RequestContext
from kclient.gateway.error_codes import Role
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.gateway.producer_ids import ProducerIds
from kclient.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from kclient.protocol.registry import ApiKey

logger: logging.Logger = logging.getLogger("kclient.gateway.produce")


class InitProducerIdHandler(Handler):
    """Answers InitProducerId."""

    API: ClassVar[ApiKey] = ApiKey.INIT_PRODUCER_ID
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.PRODUCERS

    def __init__(self, access: Access, producer_ids: ProducerIds) -> None:
        self._access = access
        self._producer_ids = producer_ids

    def begin(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse | Finish:
        """Give out an id, later if a block has to be taken first."""
        if request.transactional_id is not None:
            logger.warning(
                "%s asks for transactions (transactional.id %r), which are not supported yet",
                context.connection.peer,
                request.transactional_id,
            )
            # the one error that ends every client's attempt at once: others are tried again by librdkafka
            raise TransactionalIdAuthorizationError(
                f"transactions are not supported yet (transactional.id {request.transactional_id!r})"
            )
        if not self._access.allows_any(context.connection, AclOperation.WRITE, ResourceType.TOPIC):
            self._access.check_cluster(context.connection, AclOperation.IDEMPOTENT_WRITE)
        # As in Kafka, a producer without a transactional id gets a new id each time it asks, with epoch 0.
        taken = self._producer_ids.take_nowait()
        if taken is not None:
            return InitProducerIdResponse(producer_id=taken, producer_epoch=0)
        return partial(self._finish)

    async def _finish(self) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=await self._producer_ids.take(), producer_epoch=0)
