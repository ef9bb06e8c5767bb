"""A request on its way."""

from __future__ import annotations

from typing import Any

from kclient.concurrency import Completion
from kclient.protocol.message import ApiMessage

__all__ = ["Pending", "response_of"]


class Pending(Completion[Any]):
    """A request on its way: await it for the response message (None for requests without response).

    It ends with `KafkaTimeoutError`, `BrokerConnectionError` or `ProtocolError` if there is no response. Several
    tasks may await it, or none; `on_done` calls back without any task.
    """

    __slots__ = ("abandoned", "api_name", "correlation_id", "deadline", "response", "timeout", "version")

    def __init__(
        self,
        api_name: str,
        version: int,
        correlation_id: int,
        response: type[ApiMessage] | None,
        timeout: float,
        deadline: float,
    ) -> None:
        super().__init__()
        self.api_name: str = api_name
        """The request's class, for messages."""
        self.version: int = version
        self.correlation_id: int = correlation_id
        self.response: type[ApiMessage] | None = response
        self.timeout: float = timeout
        self.deadline: float = deadline
        self.abandoned: bool = False
        """Nobody waits any more: the response is dropped without decoding."""


async def response_of(pending: Pending) -> Any:
    """Wait for a response. Cancelling it ends the wait only: the response is dropped when it comes."""
    try:
        return await pending.wait()
    finally:
        pending.abandoned = not pending.done
