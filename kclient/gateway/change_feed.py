"""Follows what other gateways change in the manager, by its log of changes, and hands it to those it concerns."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.lowlevel

from kclient.errors import ClosedError, KafkaError
from kclient.htp.errors import TokenTooOldError

if TYPE_CHECKING:
    from kclient.htp.port import Change, Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")

_WAIT_S: Final = 30.0
"""Seconds that the store is asked to wait for changes: it answers as soon as there are some."""
_FEW: Final = 100
"""Of more changes each follower's are looked out in a turn of its own."""
_PAUSE_S: Final = 0.03
"""Seconds between two pages: what changes many things at once, which may be this gateway, is not told of one by one."""
_AGAIN_S: Final = 1.0
"""Seconds until a store that has failed is asked again."""


class Follower(Protocol):
    """Wants to know of changes below some prefixes.

    One's own changes are told too, some changes twice, and late: what counts is what the store says now.
    """

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Of the keys."""
        ...

    async def apply(self, changes: Sequence[Change]) -> None:
        """These rows have changed, in this order. Raises `KafkaError` if something fails; then it is told again."""
        ...

    async def read_all(self) -> None:
        """Some changes are not known: compare all rows. Raises `KafkaError` if that fails; then it is told again."""
        ...


class ChangeFeed:
    """Reads the log of changes.

    Args:
        manager: The store's.
        followers: Who is told what; the prefix of one is not below that of another.
    """

    def __init__(self, manager: Manager, followers: Sequence[Follower]) -> None:
        self._manager = manager
        self._followers = followers
        self._prefixes = tuple(prefix for each in followers for prefix in each.prefixes)
        self._token = ""

    async def begin(self) -> None:
        """What changes from now on will be told; called before the followers load what there is.

        Raises:
            HtpError: The store failed.
        """
        self._token = (await self._manager.changes(self._prefixes)).token

    async def run(self) -> None:
        """Tell the followers of changes, until the gateway closes."""
        failed = False
        while True:
            try:
                await self._step()
                failed = False
                await anyio.sleep(_PAUSE_S)
            except ClosedError:  # what it was doing was given up
                return
            except KafkaError as error:
                if not failed:
                    logger.warning("what other gateways change is not seen now, it is tried again: %s", error)
                failed = True
                await anyio.sleep(_AGAIN_S)

    async def _step(self) -> None:
        try:
            page = await self._manager.changes(self._prefixes, self._token, wait=_WAIT_S)
        except TokenTooOldError as error:
            logger.info("all that other gateways may have changed is read anew: %s", error)
            token = (await self._manager.changes(self._prefixes)).token
            for follower in self._followers:
                await follower.read_all()
            self._token = token
            return
        for follower in self._followers:
            prefixes = follower.prefixes
            found = [change for change in page.changes if change.key.startswith(prefixes)]
            if found:
                await follower.apply(found)
            if len(page.changes) > _FEW:
                await anyio.lowlevel.checkpoint()
        self._token = page.token
