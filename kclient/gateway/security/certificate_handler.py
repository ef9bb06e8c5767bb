"""Who clients are that show a certificate and do not log in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kclient.gateway.contexts import ANONYMOUS, ConnectionContext, Principal
from kclient.gateway.security.distinguished_names import subject_of
from kclient.net.answers import CloseConnectionError
from kclient.net.tls import TlsStream

if TYPE_CHECKING:
    from kclient.gateway.security.principal_rules import PrincipalRules
    from kclient.net.answers import Answer
    from kclient.net.server import RequestHandler
    from kclient.net.server_connection import ServerConnection

logger: logging.Logger = logging.getLogger("kclient.gateway.server")

_LONGEST: Final = 1024
"""Characters of a subject: nobody has so long a name, and rules are looked for in all of it."""


class CertificateHandler:
    """Lets clients through as whom their certificates say, to another handler.

    A certificate has been checked by then, in the handshake. Who shows none is ANONYMOUS. Where no rule speaks of one,
    the connection is closed at its first request, as on Kafka; so is that of a name with line breaks, which would end
    up in logs.

    Args:
        handler: Answers the requests.
        rules: `ssl.principal.mapping.rules` of the listener.
    """

    def __init__(self, handler: RequestHandler, rules: PrincipalRules) -> None:
        self.handler = handler
        self._rules = rules
        self._nobodies: dict[ServerConnection, str] = {}
        """Those whom no rule speaks of, and why they are let do nothing."""

    def connected(self, connection: ServerConnection) -> None:
        """See `RequestHandler`."""
        self.handler.connected(connection)
        context: ConnectionContext = connection.context
        try:
            context.principal = self._principal_of(connection)
        except ValueError as error:
            self._nobodies[connection] = str(error)
        else:
            logger.debug("%s is %s", connection.peer, context.principal)

    def disconnected(self, connection: ServerConnection) -> None:
        """See `RequestHandler`."""
        self._nobodies.pop(connection, None)
        self.handler.disconnected(connection)

    def begin(self, frame: memoryview, connection: ServerConnection) -> Answer:
        """See `RequestHandler`."""
        if self._nobodies and connection in self._nobodies:
            raise CloseConnectionError(self._nobodies[connection])
        return self.handler.begin(frame, connection)

    def _principal_of(self, connection: ServerConnection) -> Principal:
        """Raises `ValueError`, with a text for the log."""
        stream = connection.stream
        certificate = stream.peer_certificate if isinstance(stream, TlsStream) else None
        if certificate is None:
            return ANONYMOUS
        try:
            name = subject_of(certificate)
        except ValueError as error:
            raise ValueError(f"the subject of its certificate cannot be read: {error}") from error
        if len(name) > _LONGEST:
            raise ValueError(f"the subject of its certificate has {len(name)} characters, of {_LONGEST} at most")
        user = self._rules.user_of(name)
        if user is None:
            raise ValueError(f"no rule of ssl.principal.mapping.rules speaks of its certificate, of {name!a}")
        if not user.isprintable():
            raise ValueError(f"its certificate stands for {user!a}, whose characters cannot all be printed")
        return Principal(user)
