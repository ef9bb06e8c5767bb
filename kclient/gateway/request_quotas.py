"""Which requests are charged for: those of clients for which a quota holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kclient.gateway.contexts import ANONYMOUS
from kclient.gateway.quotas.charges import Charge, Throttles
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.quotas.clients import ClientQuotas

__all__ = ["RequestQuotas"]

_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_PRODUCE: Final = int(ApiKey.PRODUCE)


class RequestQuotas:
    """Makes the charges of requests.

    Args:
        clients: The quotas of clients.
        throttles: Counts.
        now: Seconds on the gateway's monotonic clock.
        exempt: Whether a client id is that of a gateway: what they ask of one another is not throttled.
    """

    def __init__(
        self,
        clients: ClientQuotas,
        throttles: Throttles,
        now: Callable[[], float],
        exempt: Callable[[str | None], bool],
    ) -> None:
        self.clients: ClientQuotas = clients
        """What holds for them: while none is active, there is nothing to charge."""
        self.throttles: Throttles = throttles
        self._now = now
        self._exempt = exempt
        self._longest_ms = clients.window.sample_ms

    def charge(self, context: RequestContext, size: int) -> Charge | None:
        """What a request is charged for that has begun; None where no quota holds for its client.

        Args:
            context: The request.
            size: Its bytes.
        """
        connection = context.connection
        if connection.principal is ANONYMOUS and connection.advertised.security_protocol in _SASL:
            return None  # it is about to log in; until then nothing is remembered of the client ids that it says
        limits = connection.limits
        if (
            limits is None
            or limits.epoch is not self.clients.epoch
            or limits.client_id != context.client_id
            or limits.principal is not connection.principal
        ):
            if self._exempt(context.client_id):
                return None
            principal = connection.principal
            limits = connection.limits = self.clients.limits(
                principal, principal.name, context.client_id, int(self._now() * 1000)
            )
        if not limits.any:
            return None
        if self._exempt(context.client_id):
            return None
        charge = Charge(limits, context.place, self._now, connection.flow.clock, self._longest_ms, self.throttles)
        if context.api_key == _PRODUCE:
            charge.produced(size)
        return charge
