"""What is known about the group's coordinator, as a state machine free of I/O and clocks.

It moves while a membership lasts, and may hang; so it is looked for again when it fails, ever less often, and asked
about when it does not answer somebody who joins.
"""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.cluster.coordinators import GROUP, coordinator_in, coordinator_request
from kclient.consumer.group.model import GroupRequest, RequestKind
from kclient.consumer.group.states import COORDINATOR_TABLE, CoordinatorEvent, CoordinatorState
from kclient.errors import ErrorCode, KafkaError
from kclient.protocol.messages import FindCoordinatorRequest
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.consumer.group.model import MemberSettings

logger: logging.Logger = logging.getLogger("kclient.consumer.coordinator")

COORDINATOR_GONE = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""What a broker answers that is not, or not any more."""


class CoordinatorLookup:
    """Where the coordinator of one group is.

    Args:
        settings: The configuration.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self.state: CoordinatorState = CoordinatorState.UNKNOWN
        self.node: int | None = None
        """Node id of the coordinator, while it is known."""
        self.epoch: int = 0
        """Grows whenever it is found: what went wrong at an earlier one says nothing of this one."""
        self.retry_at: float = 0.0
        """Nobody is asked before."""
        self._settings = settings
        self._failures = 0
        """How often none was found, or the one failed, since one answered as such."""
        self._lookup: GroupRequest | None = None
        self._check: GroupRequest | None = None
        self._check_at = inf

    # ------------------------------------------------------------------ finding

    def plan(self, now: float, requests: list[GroupRequest]) -> float:
        """Look for it, if it is not known: adds the request that is due; returns when one will be."""
        if self.state is CoordinatorState.KNOWN or self._lookup is not None:
            return inf
        if now < self.retry_at:
            return self.retry_at
        self._go(CoordinatorEvent.ASKED)
        self._lookup = self._request()
        requests.append(self._lookup)
        return inf

    def is_awaiting(self, request: GroupRequest) -> bool:
        """Whether the request is one of this machine's that is still of interest."""
        return request is self._lookup or request is self._check

    def received(self, request: GroupRequest, response: Any, now: float) -> KafkaError | None:
        """The answer to a request; returns why there is no coordinator."""
        try:
            node = coordinator_in(response).id
        except KafkaError as error:
            return self.failed(request, error, now)
        if request is self._check:
            self.waited(now)
            if node != self.node:
                self.lose(f"it did not answer, and the group has moved to node {node}", now)
            return None
        self._lookup = None
        self._go(CoordinatorEvent.FOUND)
        self.node = node
        self.epoch += 1
        logger.debug("group %s: the coordinator is node %d", self._settings.group_id, node)
        return None

    def failed(self, request: GroupRequest, error: KafkaError, now: float) -> KafkaError | None:
        """A request was refused, could not be sent, or was not answered; returns why there is no coordinator."""
        if request is self._check:
            self.waited(now)  # nobody else coordinates the group yet
            return None
        self._lookup = None
        self._go(CoordinatorEvent.NOT_FOUND)
        self._later(f"it was not found: {error}", now)
        return error

    # ------------------------------------------------------------------ losing

    def lose(self, reason: str, now: float, epoch: int | None = None) -> bool:
        """It cannot be reached, or is another broker by now.

        Args:
            reason: Why, for the log.
            now: Monotonic time in seconds.
            epoch: The `epoch` of which that is known; nothing happens if another was found since.

        Returns:
            Whether it was known, and is no longer.
        """
        if self.state is not CoordinatorState.KNOWN or epoch not in {None, self.epoch}:
            return False
        self._go(CoordinatorEvent.LOST)
        self.node = self._check = None
        self._later(reason, now)
        return True

    def answered(self, epoch: int) -> None:
        """It did what it was asked: it is the one, and well."""
        if epoch == self.epoch:
            self._failures = 0

    def _later(self, reason: str, now: float) -> None:
        # told once, until one has answered
        level = logging.DEBUG if self._failures else logging.INFO
        logger.log(level, "group %s: looking for the coordinator again: %s", self._settings.group_id, reason)
        self._failures += 1
        self.retry_at = now + self._settings.retry_backoff.seconds(self._failures)

    # ------------------------------------------------------------------ checking

    def waited(self, now: float) -> None:
        """From now on an answer is awaited that may take minutes, because a group gathers."""
        self._check = None
        self._check_at = now + self._settings.request_timeout

    def plan_check(self, now: float, requests: list[GroupRequest]) -> float:
        """While such an answer is awaited: ask now and then whether it is still the one. One that hangs would be waited
        for as long, when the others have long found another."""
        if self._check is not None or self.state is not CoordinatorState.KNOWN:
            return inf
        if now < self._check_at:
            return self._check_at
        self._check = self._request()
        requests.append(self._check)
        return inf

    def _request(self) -> GroupRequest:
        group_id = self._settings.group_id
        return GroupRequest(
            RequestKind.FIND_COORDINATOR,
            None,
            FindCoordinatorRequest,
            lambda version: coordinator_request(group_id, GROUP, version),
            self._settings.request_timeout,
        )

    def _go(self, event: CoordinatorEvent) -> None:
        self.state = next_state(COORDINATOR_TABLE, self.state, event)
