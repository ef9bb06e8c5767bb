"""The loop of everything that is tried again: after a back-off that grows, until it succeeds or cannot."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeVar

import anyio

from kclient.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.cluster.backoff import Backoff

T = TypeVar("T")


async def retry(
    attempt: Callable[[], Awaitable[T]],
    backoff: Backoff,
    *,
    retries: float = inf,
    seconds_left: Callable[[], float] | None = None,
    on_failure: Callable[[KafkaError], Awaitable[None]] | None = None,
) -> T:
    """Make attempts until one succeeds.

    Args:
        attempt: Makes one.
        backoff: How long to wait after each that failed.
        retries: How many more there may be after the first.
        seconds_left: For how long others may begin; None for ever, as where the caller's scope ends the call.
        on_failure: Is awaited after each that failed and is tried again.

    Raises:
        KafkaError: One failed for a reason that does not pass, or the last one that there could be.
    """
    failed = 0
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            if not error.retriable or failed >= retries:
                raise
            failed += 1
            delay = backoff.seconds(failed)
            if seconds_left is not None and delay >= seconds_left():
                raise
            if on_failure is not None:
                await on_failure(error)
        await anyio.sleep(delay)
