"""What is done about records that failed: what `on_error` says, and which errors go on to the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.processing.actions import Ask
from kclient.processing.failures import DeadLetter, ProcessingFailure, Raise, Retry, Skip, as_action

if TYPE_CHECKING:
    from collections.abc import Generator

    from kclient.consumer import ConsumerRecord
    from kclient.processing.actions import Step
    from kclient.processing.backlog import Backlog, RecordTrouble
    from kclient.processing.failures import FailureAction
    from kclient.processing.progress import ProgressCounter
    from kclient.processing.settings import ProcessingSettings
    from kclient.types import TopicPartition


class FinalError(Exception):
    """Carries what `run` is to raise through the scripts, which would ask whether a client's error passes."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class FailureDecisions:
    """Asks what is to be done, and counts how often.

    Args:
        settings: `on_error`, and how often it may have records tried again.
        backlog: Remembers what has failed, and how often.
        progress: Counts failures.
    """

    def __init__(self, settings: ProcessingSettings, backlog: Backlog, progress: ProgressCounter) -> None:
        self._settings = settings
        self._backlog = backlog
        self._progress = progress

    def decide(
        self, tp: TopicPartition, offset: int, last: int, records: tuple[ConsumerRecord, ...], error: Exception
    ) -> Generator[Step, Any, tuple[RecordTrouble, FailureAction]]:
        """Ask what is to be done about records that failed.

        Args:
            tp: Their partition.
            offset: Of the first.
            last: Offset of the last.
            records: Empty if the consumer could not deserialize the only one.
            error: Why.

        Raises:
            FinalError: `on_error` has failed, or what it says makes no sense.
        """
        self._progress.failures += 1
        trouble = self._backlog.failed(tp, offset, last, error)
        given: Any = self._settings.on_error
        if not isinstance(given, Raise | Skip | Retry | DeadLetter):
            try:
                given = yield Ask(given, (ProcessingFailure(tp, offset, records, error, trouble.attempts),))
                as_action(given)
            except Exception as failed:  # noqa: BLE001 - it goes on to the user, from `run`
                raise FinalError(noted(in_context(failed, error), tp, offset)) from None
        if isinstance(given, DeadLetter) and given.topic == tp.topic:
            refused = ValueError(
                f"DeadLetter({given.topic!r}) is the topic that the record is read from: it would come, and fail, for "
                "ever; name another one"
            )
            raise FinalError(noted(in_context(refused, error), tp, offset))
        if isinstance(given, Retry) and trouble.attempts > self._settings.max_retries:
            error.add_note(f"kclient: it was tried {trouble.attempts} times (max_retries={self._settings.max_retries})")
            given = Raise()
        return trouble, given


def in_context(raised: Exception, error: Exception) -> Exception:
    """What was raised because of an error, and tells that; it may be that error, or its cause."""
    known: list[BaseException | None] = [error]
    for each in known:  # which grows meanwhile
        if each is raised:
            return raised
        if each is not None:
            known += [other for other in (each.__cause__, each.__context__) if all(other is not one for one in known)]
    raised.__context__ = error
    return raised


def noted(error: Exception, tp: TopicPartition, offset: int) -> Exception:
    """The error, which tells of which record it is."""
    error.add_note(f"kclient: this is of {tp}, offset {offset}; its transaction is aborted")
    return error
