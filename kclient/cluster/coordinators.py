"""Asking who coordinates a group or a transactional id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kclient.errors import error_for
from kclient.protocol.messages import FindCoordinatorRequest
from kclient.types import Node

if TYPE_CHECKING:
    from kclient.protocol.messages import FindCoordinatorResponse

GROUP: Final = 0
"""Coordinator type of consumer groups."""
TRANSACTION: Final = 1
"""Coordinator type of transactional ids."""


def coordinator_request(key: str, key_type: int, version: int) -> FindCoordinatorRequest:
    """The request for the coordinator of a key; from version 4 on it asks for several at once."""
    request = FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        request.coordinator_keys = [key]
    else:
        request.key = key
    return request


def coordinator_in(answer: FindCoordinatorResponse) -> Node:
    """The coordinator that a broker named, in an answer of any version about one key.

    Raises:
        KafkaError: There is none, or the key must not be used.
    """
    found: Any = answer.coordinators[0] if answer.coordinators else answer
    if found.error_code:
        raise error_for(found.error_code, found.error_message or None)
    return Node(found.node_id, found.host, found.port)
