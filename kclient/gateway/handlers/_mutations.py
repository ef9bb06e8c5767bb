"""Partitions that a request makes and deletes, as `controller_mutation_rate` bounds them (KIP-599)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.gateway.contexts import RequestContext

__all__ = ["Mutations"]


class Mutations:
    """What one request changes.

    Args:
        context: The request.
        strict_since: The version of its API from which on clients know that a change may be refused for now.
        waits: Whether its client has to wait where it is refused.
    """

    __slots__ = ("_charge", "_strict", "_waits")

    def __init__(self, context: RequestContext, *, strict_since: int, waits: bool = True) -> None:
        self._waits = waits
        self._charge = context.charge
        self._strict = context.api_version >= strict_since

    def add(self, partitions: int) -> None:
        """So many are to be made or deleted.

        Raises:
            ThrottlingQuotaExceededError: There have been too many.
        """
        if self._charge is not None:
            self._charge.mutate(partitions, strict=self._strict, waits=self._waits)
