"""What is said about a connection that has ended: why, and which setting may be behind it."""

from __future__ import annotations

import copy

from kclient.errors import AuthenticationError, BrokerConnectionError, KafkaError
from kclient.net.streams import CutOffError

__all__ = ["ended_error", "looks_like_sasl", "looks_like_tls"]

SASL_HINT = ", at the first request; does this listener ask for SASL? (security.protocol)"
TLS_HINT = " before it told its versions; does this listener ask for TLS? (security.protocol)"

SOON = 10.0
"""Seconds after the versions were told; a broker that hangs up later has other reasons than the first request."""


def looks_like_sasl(cause: BaseException | None, since_versions: float) -> bool:
    """Whether the first request ended it as at a listener that asks for SASL: that answers ApiVersions, then hangs up.

    Args:
        cause: Why the channel ended.
        since_versions: Seconds since the broker told its versions.
    """
    hung_up = cause is None or isinstance(cause, ConnectionResetError | BrokenPipeError | CutOffError)
    return hung_up and since_versions < SOON


def looks_like_tls(cause: BaseException | None) -> bool:
    """Whether a connection in the clear, without any answer, ended as at a listener that asks for TLS."""
    return isinstance(cause, OSError | None)


def ended_error(
    what: str, address: object, peer: str, cause: BaseException | None, *, local: bool, hint: str = ""
) -> KafkaError:
    """A new exception for each waiter: raising one object in several tasks mixes up their tracebacks.

    Args:
        what: What could not be done, as the beginning of the sentence.
        address: Where it was asked to connect to.
        peer: Where it arrived.
        cause: Why it ended; None if it was closed without a fault.
        local: Whether this side closed it.
        hint: What may be behind it, as the end of the sentence.
    """
    if isinstance(cause, AuthenticationError):
        # a new connection would meet the same refusal: it must not look like one that is worth a retry
        refusal = copy.copy(cause)
        refusal.__cause__ = cause
        return refusal
    if cause is not None:
        reason = (str(cause) or type(cause).__name__) + hint
    elif local:
        reason = "it was closed by this client"
    else:
        reason = f"the broker closed it{hint}"
    where = str(address) if peer == str(address) else f"{address} ({peer})"
    error = BrokerConnectionError(f"{what}: the connection to {where} ended: {reason}")
    error.__cause__ = cause
    return error
