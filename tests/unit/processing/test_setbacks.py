"""How long a processor bears it that no transaction succeeds, in times of its own."""

from __future__ import annotations

import pytest

from kclient.errors import KafkaTimeoutError
from kclient.processing.failures import Raise
from kclient.processing.setbacks import Setbacks
from kclient.processing.settings import ProcessingSettings


def setbacks(timeout: float = 10.0) -> Setbacks:
    settings = ProcessingSettings(
        batch=False, concurrency=1, commit_interval=1.0, on_error=Raise(), max_retries=5, retry_timeout=timeout,
        transaction_timeout=60.0, retry_backoff_ms=100, retry_backoff_max_ms=400,
    )  # fmt: skip
    return Setbacks(settings, unnoticed=1.0)


def abort(made: Setbacks, now: float) -> float:
    """A transaction was aborted; how long the pause is."""
    made.note(KafkaTimeoutError("no answer"), "commit_transaction", now)
    made.aborted(now)
    return made.take_pause()


def test_pauses_grow_until_one_succeeds() -> None:
    made = setbacks()
    assert abort(made, 0) == 0, "the first time it is tried again at once"
    for now, (least, most) in enumerate([(0.08, 0.12), (0.16, 0.24), (0.32, 0.48), (0.32, 0.48)], 1):
        assert least <= abort(made, now / 100) <= most
        assert made.pause == 0, "it is waited for once"
    made.succeeded()
    assert abort(made, 1) == 0


@pytest.mark.parametrize("what", ["succeeded", "answered"])
def test_it_is_borne_for_a_time(what: str) -> None:
    made, error = setbacks(), KafkaTimeoutError("no answer")
    made.note(error, "init_transactions", 100)
    made.note(error, "init_transactions", 110)
    getattr(made, what)()
    made.note(error, "init_transactions", 115)
    made.note(error, "init_transactions", 125)
    with pytest.raises(KafkaTimeoutError) as raised:
        made.note(error, "init_transactions", 125.1)
    assert raised.value is error
    assert error.__notes__ == [
        "kclient: for 10 s no transaction of the processor has succeeded (retry_timeout=10)",
    ]


def test_waiting_for_records_does_not_count() -> None:
    made, error = setbacks(), KafkaTimeoutError("no answer")
    assert abort(made, 100) == 0
    made.begun(150)  # the records came 50 seconds later
    made.note(error, "commit_transaction", 160)
    with pytest.raises(KafkaTimeoutError):
        made.note(error, "commit_transaction", 160.1)


def test_reading_counts() -> None:
    made, error = setbacks(), KafkaTimeoutError("no answer")
    assert abort(made, 100) == 0
    made.begun(101)
    with pytest.raises(KafkaTimeoutError):
        made.note(error, "commit_transaction", 110.1)
