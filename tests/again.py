"""Run pytest, and what failed once more by itself: `python -m tests.again PYTEST_ARGUMENTS...`.

Of twenty thousand tests that share two cores some may lose a race of their own. Up to eight that failed run again, one
at a time and with nothing beside them: those that pass then are named at the end as unsteady, and are to be mended; a
fault that is always there fails again. The exit code is pytest's, of the second run where there was one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 8
"""So many may fail: of more it is not chance."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, help="where the names of the tests that fail are written, one a line")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """With pytest-xdist only the process that deals out the tests hears of all, also of those that ended theirs."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config.getoption("failed_to"), config.getoption("dist", "no")))


class Failures:
    """Writes down which tests fail, or cannot be set up or torn down."""

    def __init__(self, path: Path, dist: str) -> None:
        self._path = path
        self._grouped = dist == "loadgroup"
        self._names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # pytest-xdist writes a test's group behind its name
            name = report.nodeid.rpartition("@")[0] if self._grouped else report.nodeid
            self._names[name or report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self._path.write_text("".join(f"{name}\n" for name in self._names))


def without_processes(arguments: Sequence[str]) -> list[str]:
    """The options among pytest's arguments, without those of pytest-xdist, and without files and folders."""
    left: list[str] = []
    rest = iter(arguments)
    for each in rest:
        if each in {"-n", "--dist"}:
            next(rest, None)
        elif each in {"-m", "-o", "-k", "-p"}:
            left += [each, next(rest, "")]
        elif each.startswith("-") and not each.startswith(("-n", "--dist=", "--ignore=")):
            left.append(each)
    return left


def _run(arguments: Sequence[str], failed: Path) -> int:
    """Run pytest in a process of its own, that writes down what failed."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.again", f"--failed-to={failed}", *arguments]
    return subprocess.run(command, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "failed")
        code = _run(arguments, path)
        names = path.read_text().splitlines() if path.exists() else []
        if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= MOST:
            return code
        print(f"\nonce more, by {'itself' if len(names) == 1 else 'themselves'}:", *names, sep="\n  ", flush=True)
        code = _run([*names, *without_processes(arguments)], path)
    if code == pytest.ExitCode.OK:
        print("\nUNSTEADY (failed once, and passed alone):", *names, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
