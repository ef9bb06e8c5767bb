"""The appender: which batch a record goes to, what is refused, threads, and code that runs in between."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kclient.records import MAX_BATCH_SIZE
from tests.unit.records.faces import Face

STAMP = 1_700_000_000_000


class Setup:
    """An appender of a topic with three partitions, of which 0 and 2 have open batches."""

    def __init__(self, face: Face, *, limit: int = 10_000, ignore_keys: bool = False) -> None:
        class Handle(face.LazyDelivery):  # type: ignore[misc, name-defined]
            __slots__ = ()

        self.face = face
        self.handle = Handle
        self.appender = face.Appender(Handle, ignore_keys)
        self.slots = face.TopicSlots()
        self.slots.partitions = 3
        self.slots.sticky = 2
        self.appender.topics["t"] = self.slots
        self.builders = {number: face.BatchBuilder(limit=limit) for number in (0, 2)}
        for number, builder in self.builders.items():
            self.slots.open(number, f"batch {number}", builder)

    def values(self, number: int) -> list[Any]:
        return [r.value for r in self.face.decode_records(self.builders[number].build(), "t", number)]


def key_for(face: Face, partition: int) -> bytes:
    return next(key for key in (b"%d" % n for n in range(100)) if face.partition_for_key(key, 3) == partition)


def test_places(face: Face) -> None:
    setup = Setup(face)
    append = setup.appender.append
    sticky = append("t", b"sticky")
    assert isinstance(sticky, setup.handle)
    assert (sticky.batch, sticky.index) == ("batch 2", 0)
    keyed = append("t", b"keyed", key_for(face, 0))
    assert (keyed.batch, keyed.index) == ("batch 0", 0)
    chosen = append("t", b"chosen", b"key", 2, STAMP, [("h", b"x")])
    assert (chosen.batch, chosen.index) == ("batch 2", 1)
    assert append("t", None, key_for(face, 0), 0).index == 1
    assert setup.values(2) == [b"sticky", b"chosen"]
    assert setup.values(0) == [b"keyed", None]


def test_where_there_is_no_open_batch(face: Face) -> None:
    setup = Setup(face)
    append = setup.appender.append
    assert append("other", b"v") is None
    assert append("t", b"v", None, 1) is None
    assert append("t", b"v", None, 7) is None
    assert append("t", b"v", None, -1) is None
    assert append("t", b"v", key_for(face, 1)) is None
    setup.slots.close(2)
    setup.slots.close(7)
    setup.slots.close(-1)
    assert append("t", b"v") is None
    setup.slots.sticky = -1
    assert append("t", b"v") is None
    setup.slots.partitions = 0
    assert append("t", b"v", b"k") is None
    assert all(builder.count == 0 for builder in setup.builders.values())


def test_full_batch(face: Face) -> None:
    setup = Setup(face, limit=200)
    assert setup.appender.append("t", b"x" * 100) is not None
    assert setup.appender.append("t", b"x" * 100) is None
    setup.builders[2].limit = 400
    assert setup.appender.append("t", b"x" * 100).index == 1


def test_limit_may_grow_but_not_beyond_what_a_batch_can_be(face: Face) -> None:
    builder = face.BatchBuilder(limit=100)
    builder.append(1, None, b"x" * 100)
    builder.limit = MAX_BATCH_SIZE * 2
    assert builder.append(1, None, b"x" * 1000) == 1


def test_keys_may_be_ignored(face: Face) -> None:
    setup = Setup(face, ignore_keys=True)
    assert setup.appender.append("t", b"v", key_for(face, 0)).batch == "batch 2"


def test_timestamp_is_now(face: Face) -> None:
    setup = Setup(face)
    before = int(time.time() * 1000) - 1
    setup.appender.append("t", b"v")
    setup.appender.append("t", b"v", None, None, STAMP)
    assert before <= setup.builders[2].first_timestamp <= time.time() * 1000
    assert setup.builders[2].timestamp_runs.tolist() == [0, setup.builders[2].first_timestamp, 1, STAMP]


def test_runs_of_timestamps(face: Face) -> None:
    builder = face.BatchBuilder(limit=10_000)
    for stamp in (5, 5, -1, -1, -1, 7):
        builder.append(stamp, None, b"")
    builder.append_many(7, [b""] * 3)
    builder.append_many(8, [b""] * 3)
    assert builder.timestamp_runs.tolist() == [0, 5, 2, -1, 5, 7, 9, 8]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("t", "text"), TypeError),
        (("t", b"", "text"), TypeError),
        (("t", b"", None, None, "now"), TypeError),
        (("t", b"", None, None, -2), ValueError),
        (("t", b"", None, None, None, [("h", 5)]), TypeError),
        (("t", b"", None, "2"), TypeError),
    ],
)
def test_refused_records_change_nothing(face: Face, arguments: tuple[Any, ...], kind: type[Exception]) -> None:
    setup = Setup(face)
    with pytest.raises(kind):
        setup.appender.append(*arguments)
    assert all(builder.count == 0 for builder in setup.builders.values())
    assert setup.appender.append("t", b"the lock is free").index == 0


@pytest.mark.parametrize("partition", [-1, -(2**31), 1 << 20, 2**31 - 1])
def test_impossible_partitions(face: Face, partition: int) -> None:
    setup = Setup(face)
    with pytest.raises(ValueError, match="partition must be from 0 to 1048575"):
        setup.slots.open(partition, "batch", setup.builders[0])


def test_kinds_of_buffers(face: Face) -> None:
    setup = Setup(face)
    for value in (bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c")[::2]):
        setup.appender.append("t", value, value, 2)
    assert setup.values(2) == [b"abc"] * 3


def test_built_batch(face: Face) -> None:
    setup = Setup(face)
    setup.appender.append("t", b"v")
    setup.builders[2].build()
    with pytest.raises(RuntimeError, match="built"):
        setup.appender.append("t", b"v")


def test_handles_must_be_handles(face: Face) -> None:
    with pytest.raises(TypeError):
        face.Appender(object)


def test_headers_that_send(face: Face) -> None:
    """Code of the user that runs while a record is taken may send another one."""
    setup = Setup(face)

    class Sly(list[Any]):
        def __iter__(self) -> Any:
            setup.appender.append("t", b"inner")
            return iter([("h", b"x")])

    assert setup.appender.append("t", b"outer", headers=Sly([1])).index == 1
    assert setup.values(2) == [b"inner", b"outer"]


def test_headers_that_can_be_read_only_once_are_left_to_the_caller(face: Face) -> None:
    setup = Setup(face)
    once = iter([("h", b"x")])
    assert setup.appender.append("t", b"v", headers=once) is None
    assert list(once) == [("h", b"x")], "nothing was taken from it"


def test_times_that_no_record_is_sent_with(face: Face) -> None:
    setup = Setup(face)
    for timestamp in (-1, -2, -(2**63)):
        with pytest.raises(ValueError, match=r"timestamp|time in milliseconds"):
            setup.appender.append("t", b"v", timestamp=timestamp)
    assert setup.appender.append("t", b"v", timestamp=0) is not None


def test_threads(face: Face) -> None:
    setup = Setup(face, limit=1 << 20)
    handles: list[list[Any]] = [[] for _ in range(4)]

    def work(mine: list[Any]) -> None:
        for number in range(1000):
            if number % 100 == 0:
                with setup.appender.lock:
                    setup.slots.sticky = 2 - setup.slots.sticky
            mine.append(setup.appender.append("t", b"%d" % number))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [(handle.batch, handle.index) for mine in handles for handle in mine]
    assert len(set(places)) == len(places) == 4000
    assert sum(builder.count for builder in setup.builders.values()) == 4000
    for number, builder in setup.builders.items():
        assert len(setup.values(number)) == builder.count
