"""When positions are committed by themselves (`enable.auto.commit`)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.cluster import Backoff


class AutoCommit:
    """When positions are due to be committed (`enable.auto.commit`).

    Args:
        interval: Seconds between commits (`auto.commit.interval.ms`); None if they are not committed by themselves.
        backoff: How soon to try again what failed.
    """

    def __init__(self, interval: float | None, backoff: Backoff) -> None:
        self.interval = interval
        self.due: float = inf
        """When the next commit is due."""
        self.failures: int = 0
        """Commits that failed since one succeeded."""
        self._backoff = backoff

    @property
    def enabled(self) -> bool:
        """Whether positions are committed by themselves."""
        return self.interval is not None

    def polled(self, now: float) -> bool:
        """The user polls, so what earlier polls returned is processed: whether to commit it now."""
        if self.interval is None:
            return False
        if self.due == inf:
            self.due = now + self.interval
        if now < self.due:
            return False
        self.due = now + self.interval
        return True

    def succeeded(self) -> None:
        """Positions were committed."""
        self.failures = 0

    def failed(self, now: float, *, again: bool) -> None:
        """They were not; `again` if that is for a reason that passes, so that they are tried again soon."""
        self.failures += 1
        if again:
            self.due = min(self.due, now + self._backoff.seconds(self.failures))
