"""What a server's log says of a connection that it closes for what its client has sent."""

from __future__ import annotations

import logging

from kclient.errors import ProtocolError
from kclient.net.answers import CloseConnectionError
from kclient.net.memory_budget import TooMuchMemoryError
from kclient.protocol.errors import UnknownRequestError

__all__ = ["tell_closing"]

logger: logging.Logger = logging.getLogger("kclient.net.server")


def tell_closing(peer: str, error: BaseException) -> None:
    """Why a connection is closed: in one line where it is put down to the client, else with the traceback.

    Args:
        peer: The client's address.
        error: Why. It is told as text: log records that are kept must not keep the connection.
    """
    if isinstance(error, CloseConnectionError):
        logger.warning("%s: the connection is closed: %s", peer, str(error))
    elif isinstance(error, TooMuchMemoryError):
        logger.warning("%s asks for too much, the connection is closed: %s", peer, str(error))
    elif isinstance(error, ProtocolError):
        logger.warning("%s sent a malformed request, the connection is closed: %s", peer, str(error))
    elif isinstance(error, UnknownRequestError):
        logger.warning("%s sent an unknown request, the connection is closed: %s", peer, str(error))
    else:
        logger.error("%s: a request failed, the connection is closed", peer, exc_info=error)
