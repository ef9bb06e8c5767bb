"""Where epochs start in a topic, and what a partition store needs of a store."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.gateway.extents import DirectStore, EpochStarts, ExtentStore, LeaseGuard, partition_store
from kclient.gateway.extents.fencing import GuardedSent
from kclient.gateway.rows.extents import ChunkRow, ChunksRow, decode_chunks, decode_starts, encode_chunks
from kclient.htp import FencedError, OutcomeUnknownError, StorageError
from kclient.htp.port import CAP_FENCED_SENDS, CAP_ORDINAL_POSITIONS

CHUNKS = [ChunksRow(0, 0, 100, [ChunkRow(0, 0, 1, 1, 1)])]


def test_only_what_grows_is_kept() -> None:
    starts = EpochStarts()
    assert (starts.newest, starts.at(0)) == (-1, 0)
    for epoch, position in [(3, 10), (5, 40), (4, 20), (3, 15), (5, 50), (4, 60), (2, 5)]:
        starts.add(epoch, position)
    assert starts.all == [(2, 5), (3, 10), (4, 20), (5, 40)]
    assert [starts.at(position) for position in (0, 5, 9, 10, 39, 40, 1000)] == [0, 2, 2, 3, 4, 5, 5]
    starts.add(6, 15)
    assert starts.all == [(2, 5), (3, 10), (6, 15)], "what started later in an older one says nothing"


def test_they_are_found_in_any_order() -> None:
    for seed in range(50):
        dice = Random(seed)
        told = [(dice.randrange(10), position) for position in range(30)]
        inorder, shuffled = EpochStarts(told), EpochStarts()
        for epoch, position in dice.sample(told, len(told)):
            shuffled.add(epoch, position)
        for position in range(30):
            expected = max(epoch for epoch, at in told if at <= position)
            assert inorder.at(position) == shuffled.at(position) == expected


def test_what_is_trimmed_leaves_its_epoch() -> None:
    starts = EpochStarts([(1, 10), (2, 20), (3, 30)])
    starts.trim(5)
    assert len(starts.all) == 3
    starts.trim(25)
    assert starts.all == [(2, 20), (3, 30)]
    assert starts.at(25) == 2
    starts.trim(1000)
    assert starts.all == [(3, 30)]
    assert not starts.forget_from(31)
    assert starts.forget_from(30)
    assert not starts.all


def test_their_row() -> None:
    row = encode_chunks(CHUNKS, EpochStarts([(1, 10), (2, 20)]).all)
    assert decode_starts(row) == [(1, 10), (2, 20)]
    assert decode_chunks(row) == CHUNKS
    assert decode_starts(encode_chunks(CHUNKS)) == []
    assert decode_starts(b'{"format": 1, "chunks": []}') == []
    for epochs in ("7", "[7]", "[[1, 2, 3]]", '[["1", 2]]', "[[1, -1]]"):
        with pytest.raises(ValueError, match=r"."):
            decode_starts(b'{"format": 1, "chunks": [], "epochs": %s}' % epochs.encode())


@pytest.mark.parametrize(
    ("capabilities", "store"),
    [({CAP_ORDINAL_POSITIONS, CAP_FENCED_SENDS}, DirectStore), ({CAP_FENCED_SENDS}, ExtentStore), (set(), ExtentStore)],
)
def test_what_suits_a_store(capabilities: set[str], store: type) -> None:
    broker: Any = SimpleNamespace(capabilities=frozenset(capabilities))
    nothing: Any = None
    assert type(partition_store(nothing, broker, nothing, lambda: 0)) is store


def test_ordinals_without_fences_are_refused() -> None:
    broker: Any = SimpleNamespace(capabilities=frozenset({CAP_ORDINAL_POSITIONS}))
    nothing: Any = None
    with pytest.raises(ConfigError, match="needs 'fenced_sends' too"):
        partition_store(nothing, broker, nothing, lambda: 0)


def test_what_may_be_said_while_a_lease_lasts() -> None:
    now = 0.0
    lease: Any = SimpleNamespace(current=SimpleNamespace(expires=10.0))
    guard = LeaseGuard(lease, lambda: now)
    told: list[BaseException | None] = []
    waiting: list[Any] = []
    sent: Any = SimpleNamespace(first=1, last=2, done=False, on_synced=waiting.append)
    guarded = GuardedSent(sent, guard, "t")
    for now in (9.9, 10.0):  # noqa: B007  (the guard reads it)
        guarded.on_synced(told.append)
    lost = StorageError("lost")
    now = 9.9
    waiting.pop()(None)
    waiting[0](lost)
    assert told == [None, lost]
    guard.check_send("t")
    guard.check_read("t")
    guard.check_stored("t")
    now = 10.0
    waiting.pop()(None)
    assert isinstance(told[-1], OutcomeUnknownError)
    for check, error in (
        (guard.check_send, StorageError),
        (guard.check_read, FencedError),
        (guard.check_stored, OutcomeUnknownError),
    ):
        with pytest.raises(error, match=r"lease ha[sd] run out"):
            check("t")
