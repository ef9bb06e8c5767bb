"""What must not be left half done when a request is cancelled, until closing the gateway has taken too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from kclient.errors import ClosedError

__all__ = ["Shields"]


class Shields:
    """Shields what it is asked to from cancellation, and gives all of that up at once where a store does not answer."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._given_up = False

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Go on in spite of a cancellation.

        Raises:
            ClosedError: It was given up: what it was doing may have been done, or not.
        """
        scope = anyio.CancelScope(shield=True)
        if self._given_up:
            scope.cancel()
        self._scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise ClosedError("the gateway has closed before the store answered")

    def give_up(self) -> int:
        """End what is shielded, and what will be, at its next checkpoint; returns how much that is."""
        self._given_up = True
        for scope in self._scopes:
            scope.cancel()
        return len(self._scopes)
