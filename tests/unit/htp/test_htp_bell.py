"""The bell by which processes with one data directory tell each other of changes."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kclient.htp.embedded.bell import Bell
from kclient.htp.embedded.processes import Processes

pytestmark = pytest.mark.timeout(30)


class Ringing:
    """Some openings of a directory, each with a bell."""

    def __init__(self, directory: Path, number: int) -> None:
        self.heard: list[queue.Queue[None]] = [queue.Queue() for _ in range(number)]
        self.bells = [Bell(Processes(str(directory))) for _ in range(number)]

    def start(self, stack: ExitStack) -> None:
        for bell, heard in zip(self.bells, self.heard, strict=True):

            def hear(heard: queue.Queue[None] = heard) -> None:
                heard.put(None)

            assert bell.start(hear)
            stack.callback(bell.stop)


@pytest.fixture(params=["short", "long" * 60])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Also one whose path no socket could have."""
    path = tmp_path / request.param
    path.mkdir()
    yield path
    assert not list(path.iterdir())  # nothing is left


def test_all_others_hear_it(directory: Path) -> None:
    ringing = Ringing(directory, 3)
    with ExitStack() as stack:
        ringing.start(stack)
        ringing.bells[1].ring()
        for place in (0, 2):
            ringing.heard[place].get(timeout=10)
        assert ringing.heard[1].empty()
        ringing.bells[1].ring()  # at once again: whoever has heard it looks still
        ringing.bells[0].ring()
        ringing.heard[2].get(timeout=10)
        ringing.heard[1].get(timeout=10)
    assert ringing.heard[0].empty()


def test_one_that_has_gone_does_no_harm(directory: Path) -> None:
    ringing = Ringing(directory, 2)
    with ExitStack() as stack:
        ringing.start(stack)
        gone = directory / "bell-7.sock"
        gone.touch()  # as of a process that was killed
        ringing.bells[0].ring()
        ringing.heard[1].get(timeout=10)
        gone.unlink()
    ringing.bells[0].ring()  # closed
