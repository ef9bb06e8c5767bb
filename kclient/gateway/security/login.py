"""What stands before the handlers on a listener where clients have to log in, or show a certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kclient.gateway.contexts import ConnectionContext, Principal
from kclient.gateway.security.certificate_handler import CertificateHandler
from kclient.net.sasl.scram import SCRAM_MECHANISMS
from kclient.net.sasl.server import SaslHandler
from kclient.net.sasl.session import server_mechanisms

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.security.delegation_tokens import DelegationTokens
    from kclient.gateway.security.listeners import GatewayListener
    from kclient.gateway.security.scram_users import ScramUsers
    from kclient.net.sasl.mechanism import ClientIdentity
    from kclient.net.server import RequestHandler
    from kclient.net.server_connection import ServerConnection

_LOGIN_S: Final = 10.0
"""Seconds that a client has to log in."""


async def login_handler(
    listener: GatewayListener,
    requests: RequestHandler,
    users: ScramUsers,
    tokens: DelegationTokens | None,
    config: BrokerConfig,
    spawn: Callable[..., object],
) -> RequestHandler:
    """What answers the clients of a listener.

    Args:
        listener: The listener.
        requests: Answers those that are known, or that need not be.
        users: Who can log in by SCRAM.
        tokens: Those that count as users of SCRAM; None where there are none.
        config: The broker's settings.
        spawn: Starts a task of the gateway.

    Raises:
        HtpError: The store failed.
        ConfigError: The keys cannot be read that tokens of OAUTHBEARER are checked against.
        MissingExtraError: Something for that is not installed.
    """
    if not listener.mechanisms:
        return requests if listener.tls is None else CertificateHandler(requests, listener.tls.rules)
    offered = listener.mechanisms
    oauth = listener.oauth
    if oauth is not None and oauth.source is not None:
        await oauth.source.load()
        spawn(oauth.source.run, name="keys of tokens")
    return SaslHandler(
        requests,
        server_mechanisms(
            plain=listener.passwords,
            scram_sha_256=users.lookup("SCRAM-SHA-256") if "SCRAM-SHA-256" in offered else None,
            scram_sha_512=users.lookup("SCRAM-SHA-512") if "SCRAM-SHA-512" in offered else None,
            oauthbearer=None if oauth is None else oauth.check,
            scram_tokens=None if tokens is None else tokens.lookup,
            scram_decoys=await users.decoys() if not SCRAM_MECHANISMS.keys().isdisjoint(offered) else None,
        ),
        max_session_ms=listener.max_session_ms,
        failure_delay=config.get_int("connection.failed.authentication.delay.ms") / 1000,
        max_receive_bytes=config.get_int("sasl.server.max.receive.size"),
        authenticated=_remember,
        login_timeout=_LOGIN_S,
        spawn=spawn,
    )


def _remember(connection: ServerConnection, identity: ClientIdentity) -> None:
    """Requests of the connection are this client's from now on."""
    context: ConnectionContext = connection.context
    context.principal = Principal(identity.principal)
    context.by_token = identity.by_token
