"""How many files and sockets may be open: shared out, each share sure of some, idle ones closed first."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from kclient.descriptors import Descriptors, DescriptorShare, process_descriptors


class Holder:
    """Somebody who opens files and keeps some of them open without need."""

    def __init__(self, descriptors: Descriptors) -> None:
        self.idle = 0
        self.share: DescriptorShare = descriptors.share(self.close_idle)

    def close_idle(self) -> bool:
        if not self.idle:
            return False
        self.idle -= 1
        self.share.give_back()
        return True

    def take(self, count: int) -> int:
        return sum(self.share.take() for _ in range(count))


def test_one_alone_may_have_all_but_what_the_others_are_sure_of() -> None:
    descriptors = Descriptors(80)
    first, second = Holder(descriptors), Holder(descriptors)
    assert first.take(100) == 70
    assert second.take(100) == 10
    assert not first.take(1)


def test_a_share_that_has_closed_leaves_everything() -> None:
    descriptors = Descriptors(80)
    first, second = Holder(descriptors), Holder(descriptors)
    second.share.close()
    assert first.take(100) == 80


def test_a_share_that_was_forgotten_leaves_everything() -> None:
    descriptors = Descriptors(80)
    share = descriptors.share()
    descriptors.share()  # and nobody has it
    assert sum(share.take() for _ in range(100)) == 80


def test_idle_ones_are_closed_for_the_others() -> None:
    descriptors = Descriptors(80)
    files, connections = Holder(descriptors), Holder(descriptors)
    assert files.take(70) == 70
    files.idle = 50
    assert connections.take(100) == 60
    assert files.idle == 0
    assert files.share.used == 20


def test_ones_own_idle_ones_are_closed_first() -> None:
    descriptors = Descriptors(80)
    first, second = Holder(descriptors), Holder(descriptors)
    first.take(40)
    second.take(40)
    first.idle = second.idle = 5
    assert first.take(5) == 5
    assert (first.idle, second.idle) == (0, 5)


def test_another_threads_files_are_left_alone() -> None:
    descriptors = Descriptors(80)
    there: list[Holder] = []
    thread = threading.Thread(target=lambda: there.append(Holder(descriptors)))
    thread.start()
    thread.join()
    there[0].take(70)
    there[0].idle = 70
    assert Holder(descriptors).take(100) == 10
    assert there[0].idle == 70


def test_what_is_needed_for_a_moment_can_be_had_anyway() -> None:
    descriptors = Descriptors(16)
    share = descriptors.share()
    assert sum(share.take() for _ in range(20)) == 16
    share.take_anyway()
    assert share.used == 17
    share.give_back()
    assert not share.take()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_the_system_tells_the_limit() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [open("/dev/null") for _ in range(100)]
from kclient.descriptors import process_descriptors
print(process_descriptors().limit)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 300 <= int(found.stdout) <= 500 - 100 - 64


def test_threads_that_ask_first_at_the_same_time_share_one() -> None:
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor
from kclient import descriptors
both, counted = threading.Barrier(2), descriptors._open
descriptors._open = lambda: (both.wait(10), counted())[1]
with ThreadPoolExecutor(2) as pool:
    first, second = [pool.submit(descriptors.process_descriptors) for _ in range(2)]
assert first.result() is second.result() is descriptors.process_descriptors()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_its_own() -> None:
    share = process_descriptors().share()
    share.take()
    before = id(process_descriptors())
    child = os.fork()
    if child == 0:
        os._exit(0 if id(process_descriptors()) != before else 1)
    assert os.waitpid(child, 0)[1] == 0
    share.give_back()
    share.close()
