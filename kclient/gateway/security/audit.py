"""Tells the log who was allowed what, and who was not, as Kafka's authorizer does in its `kafka.authorizer.logger`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kclient.gateway.log_texts import on_one_line
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.acls import AclOperation, ResourceType
    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.security.acl_authorizer import AclAuthorizer

logger: logging.Logger = logging.getLogger("kclient.authorizer")


class AclAudit:
    """What is denied comes at INFO, what is allowed at DEBUG.

    Args:
        authorizer: Tells what decisions rest on.
    """

    def __init__(self, authorizer: AclAuthorizer) -> None:
        self._authorizer = authorizer

    def tell(
        self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str, *, allowed: bool
    ) -> None:
        """Something was allowed or denied that a client has asked for."""
        level = logging.DEBUG if allowed else logging.INFO
        if not logger.isEnabledFor(level):
            return
        logger.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s "
            "based on rule %s",
            on_one_line(str(client.principal)),
            "Allowed" if allowed else "Denied",
            operation.name,
            client.client_host.removeprefix("/"),
            kind.name,
            on_one_line(name),
            _request(client.api_key),
            on_one_line(self._authorizer.rule(client, operation, kind, name)),
        )


def _request(api_key: int) -> str:
    try:
        return ApiKey(api_key).message_name
    except ValueError:
        return str(api_key)
