"""The states of an append, and who is told of them."""

from __future__ import annotations

import pytest

from kclient.errors import IllegalStateError, KafkaStorageError
from kclient.gateway.append import APPEND_TABLE, Append, AppendEvent, AppendState

STATES = list(AppendState)
LEADS_TO = {
    AppendState.PREPARED: AppendEvent.PLACED,
    AppendState.STORED: AppendEvent.STORED,
    AppendState.DURABLE: AppendEvent.SYNCED,
    AppendState.FAILED: AppendEvent.FAILED,
}


def at(state: AppendState) -> Append:
    """An append in this state, on a legal way."""
    append = Append()
    append.base_offset, append.timestamp = 7, 1795
    for each in STATES[1 : state + 1] if state is not AppendState.FAILED else STATES[4:]:
        append.move(LEADS_TO[each])
    return append


@pytest.mark.parametrize("event", AppendEvent)
@pytest.mark.parametrize("source", STATES)
def test_only_what_may_happen(source: AppendState, event: AppendEvent) -> None:
    append = at(source)
    if event in APPEND_TABLE[source]:
        append.move(event)
        assert append.state is APPEND_TABLE[source][event]
    else:
        with pytest.raises(IllegalStateError, match=f"append: {event.name} must not happen in {source.name}"):
            append.move(event)
        assert append.state is source


def test_each_is_told_once_when_it_has_waited_enough() -> None:
    append, told = at(AppendState.PREPARED), list[str]()
    append.watch(AppendState.DURABLE, lambda: told.append("durable"))
    append.watch(AppendState.STORED, lambda: told.append("stored"))
    append.tell()
    assert told == []
    append.move(AppendEvent.STORED)
    append.tell()
    append.tell()
    assert told == ["stored"]
    append.fail(KafkaStorageError("lost"))
    append.tell()
    append.tell()
    assert told == ["stored", "durable"]


@pytest.mark.parametrize(
    "way",
    [
        [AppendState.STORED, AppendState.DURABLE],
        [AppendState.STORED, AppendState.FAILED],
        [AppendState.FAILED],
    ],
)
@pytest.mark.parametrize("since", [0, 1, 2])
def test_a_repeat_follows_the_first(way: list[AppendState], since: int) -> None:
    """From whatever the first is when the repeat, which waited for its partition to open, finds it."""
    first, repeat, told = at(AppendState.PREPARED), Append(), list[AppendState]()
    repeat.watch(AppendState.STORED, lambda: told.append(repeat.state))
    repeat.watch(AppendState.DURABLE, lambda: told.append(repeat.state))
    for step, state in enumerate([AppendState.PREPARED, *way]):
        if step:
            first.error = KafkaStorageError("lost") if state is AppendState.FAILED else None
            first.move(LEADS_TO[state])
            first.tell()
        if step == min(since, len(way)):
            repeat.follow(first)
            assert (repeat.base_offset, repeat.timestamp) == (7, 1795)
    assert (repeat.state, repeat.error) == (first.state, first.error)
    assert len(told) == 2, "each once"
    assert told[-1] is way[-1]
