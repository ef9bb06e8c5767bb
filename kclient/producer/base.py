"""What the async and the blocking producer have in common as objects: how they are made, shown, dropped and left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kclient.config import ProducerConfig
from kclient.unclosed import finalizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.config import ConfigInput
    from kclient.errors import DeliveryError
    from kclient.producer.lifecycle import ProducerLifecycle


class ProducerBase:
    """The face of a `ProducerLifecycle`."""

    _label = "Producer"
    _remedy = "`close`"
    _life: ProducerLifecycle

    def __init__(self, config: ConfigInput = None, /, **settings: Any) -> None:
        self._life = self._make(ProducerConfig.parse(config, **settings), time.monotonic)

    def _make(self, config: ProducerConfig, clock: Callable[[], float]) -> ProducerLifecycle:
        """Put the parts together; they must not know the face, or dropping it would not be noticed."""
        raise NotImplementedError

    def __repr__(self) -> str:
        life = getattr(self, "_life", None)  # there is none where a setting was wrong, and a traceback shows locals
        return f"<{self._label} {life!r}>" if life is not None else f"<{self._label}, not made>"

    @finalizer
    def __del__(self) -> None:
        life = getattr(self, "_life", None)
        if life is not None:
            life.forgotten(self, self._remedy)

    def _raise_failures(self) -> None:
        """Raise what nobody has been told of."""
        failures = self._life.reports.take_failures()
        if failures is not None:
            raise failures

    def _note_losses(self, error: BaseException, failed: DeliveryError | None) -> None:
        """Tell an error that leaves the producer's block what is lost with it."""
        unsent = self._life.unsent
        if failed is not None and failed.count > unsent:
            error.add_note(f"kclient: {failed}")
        if unsent:
            error.add_note(f"kclient: {unsent} records were not sent")

    def metrics(self) -> dict[str, float]:
        """Figures since the start under the names of Java's metrics; times in milliseconds, sizes in bytes."""
        return self._life.figures()
