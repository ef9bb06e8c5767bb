"""What becomes of a batch: its states from the first record to the answer."""

from __future__ import annotations

import pytest

from kclient.errors import ErrorCode, IllegalStateError
from kclient.producer.states import BatchState
from tests.unit.producer.parts import Parts, batch_of, only


def test_a_batch_is_queued_in_flight_and_retrying() -> None:
    parts = Parts()
    parts.ready_id()
    batch = parts.send(b"a").batch
    assert batch.state is BatchState.OPEN
    (request,) = parts.requests()
    assert only(request) is batch
    assert batch.state is BatchState.IN_FLIGHT
    parts.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert batch.state is BatchState.RETRYING
    parts.now += 1
    (request,) = parts.requests()
    assert batch.state is BatchState.IN_FLIGHT
    parts.answer(request)
    assert batch.state is BatchState.SUCCEEDED


def test_a_batch_that_is_as_large_as_it_may_grow_is_queued_behind_the_next() -> None:
    parts = Parts(linger=10)
    first = parts.send(b"x" * 600).batch
    second = parts.send(b"x" * 600).batch
    assert (first.state, second.state) == (BatchState.QUEUED, BatchState.OPEN)


def test_only_a_batch_on_its_way_can_be_acknowledged_or_sent_again() -> None:
    with pytest.raises(IllegalStateError, match="ACKNOWLEDGED must not happen in QUEUED"):
        batch_of(b"a").succeed(0, -1)
    with pytest.raises(IllegalStateError, match="RETRIED must not happen in QUEUED"):
        batch_of(b"a").retry(0.0)
