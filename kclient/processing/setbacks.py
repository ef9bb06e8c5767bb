"""How long no transaction has succeeded, and how long to wait after one that was aborted: no I/O, no clock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kclient.cluster.backoff import Backoff

if TYPE_CHECKING:
    from kclient.errors import KafkaError
    from kclient.processing.settings import ProcessingSettings

logger: logging.Logger = logging.getLogger("kclient.processing")


class Setbacks:
    """Of one processor. Times are monotonic, in seconds.

    Args:
        settings: The pauses, and how long the trouble may last.
        unnoticed: Seconds without records that are too short to be told from reading.
    """

    def __init__(self, settings: ProcessingSettings, unnoticed: float) -> None:
        self.pause: float = 0.0
        """How long to wait before anything else is processed; 0 if there is no need to."""
        self._timeout = settings.retry_timeout
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._unnoticed = unnoticed
        self._aborts = 0
        """Since a commit."""
        self._since: float | None = None
        """Since when no transaction has succeeded, less the time in which there was nothing to process."""
        self._goes_on = 0.0
        """When the pause after the last abort is over."""

    def begun(self, now: float) -> None:
        """A transaction begins: what it waited for records does not count."""
        idle = now - self._goes_on
        if self._since is not None and idle > self._unnoticed:
            self._since += idle

    def note(self, error: KafkaError, what: str, now: float) -> None:
        """Log what has failed. Raises the error if nothing has succeeded for too long."""
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited > self._timeout:
            error.add_note(
                f"kclient: for {waited:.0f} s no transaction of the processor has succeeded "
                f"(retry_timeout={self._timeout:g})"
            )
            raise error
        logger.warning("%s: %s", what, error)

    def aborted(self, now: float) -> None:
        """A transaction was: the next one begins after a pause, unless it was the first since one succeeded."""
        self.pause = self._backoff.seconds(self._aborts)
        self._aborts += 1
        self._goes_on = now + self.pause

    def take_pause(self) -> float:
        """How long to wait now."""
        pause, self.pause = self.pause, 0.0
        return pause

    def answered(self) -> None:
        """The brokers answer again."""
        self._since = None

    def succeeded(self) -> None:
        """A transaction was committed."""
        self._aborts = 0
        self._since = None
