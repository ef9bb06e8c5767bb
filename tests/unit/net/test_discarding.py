"""What unfinished work holds is freed in steps, and all of it."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar

import pytest

from kclient.errors import ProtocolError
from kclient.net.answers import Steps
from kclient.net.discarding import remains_of

from .links import supervised
from .test_server import frame, serve, until

COUNT = 20_000
AT_ONCE = 256


class Thing:
    """Something that is counted."""

    __slots__ = ("inner",)
    there: ClassVar[int] = 0

    def __init__(self, inner: list[Thing] | None = None) -> None:
        self.inner = inner
        Thing.there += 1

    def __del__(self) -> None:
        Thing.there -= 1


@pytest.fixture(autouse=True)
def _from_none() -> Iterator[None]:
    Thing.there = 0
    yield
    assert Thing.there == 0


def things() -> list[Thing]:
    return [Thing() for _ in range(COUNT)]


def flat(fail: bool) -> Generator[None, None, None]:
    made = things()
    yield
    if fail:
        raise ValueError(f"{len(made)} are bad")


def nested(fail: bool) -> Generator[None, None, None]:
    made = [Thing(things()), Thing()]
    yield
    if fail:
        raise ValueError(f"{len(made)} are bad")


def many(fail: bool) -> Generator[None, None, None]:
    made = [Thing([Thing() for _ in range(100)]) for _ in range(COUNT // 100)]
    yield
    if fail:
        raise ValueError(f"{len(made)} are bad")


def waits(fail: bool) -> Generator[None, None, None]:
    yield from flat(fail)


def freed_in_steps(remains: Iterator[None] | None) -> None:
    assert remains is not None
    before = Thing.there
    assert before >= COUNT
    for _ in remains:
        assert before - Thing.there <= AT_ONCE + 1
        before = Thing.there
    assert before <= AT_ONCE + 3


@pytest.mark.parametrize("make", [flat, nested, many, waits])
def test_work_that_is_given_up(make: Callable[[bool], Generator[None, None, None]]) -> None:
    work = make(False)
    next(work)
    remains = remains_of(work)
    work.close()
    freed_in_steps(remains)


@pytest.mark.parametrize("make", [flat, nested, many, waits])
def test_work_that_failed(make: Callable[[bool], Generator[None, None, None]]) -> None:
    work = make(True)
    next(work)
    try:
        next(work)
    except ValueError as error:
        remains = remains_of(work, error)
    freed_in_steps(remains)


def test_what_is_somebody_elses_stays() -> None:
    shared = things()

    def borrows() -> Generator[None, None, None]:
        rows = shared
        yield
        del rows

    work = borrows()
    next(work)
    remains = remains_of(work)
    work.close()
    assert remains is not None
    assert not list(remains)
    assert len(shared) == Thing.there == COUNT


@pytest.mark.parametrize("lent", [0, 1])
def test_what_counts_is_the_interpreters(lent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14 does not count what a variable lends to a call."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda each: count(each) - 1 - lent)  # it has one more itself
    spec = importlib.util.find_spec("kclient.net.discarding")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shared = [[Thing() for _ in range(3)]]

    def holds(rows: list[Thing]) -> Generator[None, None, None]:
        own = things()
        yield
        del own, rows

    work = holds(shared[0])
    next(work)
    remains = module.remains_of(work)
    work.close()
    freed_in_steps(remains)
    assert len(shared[0]) == Thing.there == 3


@pytest.mark.slow
def test_lists_are_not_copied() -> None:
    """What is copied is young, and a collection looks at all of it."""
    made = things()

    def holds(rows: list[Thing]) -> Generator[None, None, None]:
        yield
        assert rows

    work = holds(made)
    next(work)
    was = gc.isenabled()
    gc.disable()
    try:
        gc.collect()  # all that there is becomes old
        remains = remains_of(work)
        assert remains is not None
        young = [each for each in gc.get_objects(generation=0) if type(each) is list and len(each) >= COUNT]
        assert not young
    finally:
        if was:
            gc.enable()
    work.close()
    del work, made
    freed_in_steps(remains)


def test_work_that_holds_nothing() -> None:
    def nothing() -> Generator[None, None, None]:
        made: list[Thing] = []
        yield
        made.append(Thing())

    work = nothing()
    assert remains_of(work) is None  # it has not begun
    next(work)
    assert remains_of(work) is None
    work.close()
    assert remains_of(work) is None


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("how", ["fails", "needs too much", "client goes"])
async def test_a_request_that_comes_to_no_end_leaves_nothing(how: str) -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("memory", supervisor, max_memory=4 << 20)

        def work() -> Any:
            made = things()
            yield 100_000
            if how == "fails":
                raise ProtocolError(f"{len(made)} are bad")
            if how == "needs too much":
                yield 2 << 20
            while True:
                yield

        handler.special = lambda *_: Steps(work())
        client.channel.write(frame(b"x"))
        await until(lambda: Thing.there)
        if how == "client goes":
            client.channel.close()
        else:
            await client.ended()
        await until(lambda: not (server.budget.used or Thing.there))
        await client.aclose()
        await server.aclose()
