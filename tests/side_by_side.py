"""Run targets of make side by side, and tell of each how it ended: `python tests/side_by_side.py make TARGET...`.

What passes is one line; what fails is shown whole, after everything else. The targets begin in the order given, so
name the longest first. The exit code is 0 where all pass, 1 where any fails, and 130 after Ctrl-C. That ends all of
them; pressed again, it kills them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

AT_ONCE = 4 * (os.cpu_count() or 1)
"""Tests wait half of the time, for disks, sockets and clocks; and what begins late has the processors for itself."""


@dataclass
class Target:
    """A target of make, as a process of its own."""

    make: str
    name: str
    output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    code: int | None = None
    seconds: float = 0.0

    def run(self) -> Target:
        """Run it to its end; what it prints is kept."""
        if self.stopped:
            return self
        began = time.monotonic()
        command = [self.make, "--no-print-directory", self.name]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, process_group=0
        ) as self.process:
            if self.stopped:  # meanwhile
                self.stop()
            self.code = self.process.wait()
        self.seconds = time.monotonic() - began
        return self

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """End it and what it has started; one that has not begun never does."""
        self.stopped = True
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):  # it has ended just now, and another thread is about to say so
                os.killpg(self.process.pid, by)

    def text(self) -> str:
        """What it printed."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace").rstrip()


def follow(targets: Sequence[Target], at_once: int = AT_ONCE) -> int:
    """Run the targets, so many of them at once, and print how each ended. Returns the exit code."""
    interruptions: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        interruptions.append(number)
        for target in targets:
            target.stop(signal.SIGINT if len(interruptions) == 1 else signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    with ThreadPoolExecutor(at_once) as pool:
        for running in as_completed([pool.submit(target.run) for target in targets]):
            target = running.result()
            if interruptions:
                continue
            last = target.text().rpartition("\n")[2]
            print(f"{'FAILED' if target.code else 'passed'} {target.name} ({target.seconds:.0f} s): {last}", flush=True)
    if interruptions:
        print("interrupted")
        return 128 + signal.SIGINT
    failed = [target for target in targets if target.code]
    for target in failed:
        print(f"\n===== {target.name} =====\n{target.text()}")
    if failed:
        print(f"\nFAILED: {', '.join(target.name for target in failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(follow([Target(sys.argv[1], name) for name in sys.argv[2:]]))
