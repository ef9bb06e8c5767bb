"""The states of an append, and who is told of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kclient.errors import IllegalStateError, KafkaStorageError
from kclient.gateway.append import SUCCESSORS, Append, AppendState

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "gateway.md"
STATES = list(AppendState)


def at(state: AppendState) -> Append:
    """An append in this state, on a legal way."""
    append = Append()
    append.base_offset, append.timestamp = 7, 1795
    for each in STATES[1 : state + 1] if state is not AppendState.FAILED else STATES[4:]:
        append.move(each)
    return append


def test_the_documentation_has_the_same_table() -> None:
    rows = re.findall(r"^\| (queued|prepared|stored|durable|failed) \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    told = {(source.upper(), target.upper()) for source, target in rows}
    assert told == {(source.name, target.name) for source, targets in SUCCESSORS.items() for target in targets}


@pytest.mark.parametrize("target", STATES)
@pytest.mark.parametrize("source", STATES)
def test_only_legal_transitions(source: AppendState, target: AppendState) -> None:
    append = at(source)
    if target in SUCCESSORS[source]:
        append.move(target)
        assert append.state is target
    else:
        with pytest.raises(IllegalStateError, match=f"append: {source.name} -> {target.name}"):
            append.move(target)
        assert append.state is source


def test_each_is_told_once_when_it_has_waited_enough() -> None:
    append, told = at(AppendState.PREPARED), list[str]()
    append.watch(AppendState.DURABLE, lambda: told.append("durable"))
    append.watch(AppendState.STORED, lambda: told.append("stored"))
    append.tell()
    assert told == []
    append.move(AppendState.STORED)
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
            first.move(state)
            first.tell()
        if step == min(since, len(way)):
            repeat.follow(first)
            assert (repeat.base_offset, repeat.timestamp) == (7, 1795)
    assert (repeat.state, repeat.error) == (first.state, first.error)
    assert len(told) == 2, "each once"
    assert told[-1] is way[-1]
