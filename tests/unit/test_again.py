"""What failed runs once more by itself (`tests/again.py`): a fault that is always there fails again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST, without_processes

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pathlib
import pytest

def runs(name):
    path = pathlib.Path(name)
    count = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(count))
    return count

@pytest.mark.xdist_group("a")
@pytest.mark.parametrize("mail", ["x@y"])
def test_unsteady(mail):
    assert runs("unsteady") > 1

@pytest.mark.xdist_group("c")
def test_that_ends_its_process():
    if runs("ended") == 1:
        os._exit(3)

@pytest.mark.parametrize("number", range(9))
def test_broken(number):
    assert runs(f"broken{number}") == 0

def test_fine():
    assert runs("fine") == 1
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(TESTS)
    return subprocess.run(
        [sys.executable, "-m", "tests.again", "-p", "xdist", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def ran(folder: Path) -> dict[str, int]:
    return {each.name: int(each.read_text()) for each in folder.iterdir() if each.is_file() and "." not in each.name}


def test_one_that_passes_the_second_time_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "test_some.py", "-k", "unsteady or fine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "UNSTEADY" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "test_some.py::test_unsteady[x@y]"
    assert ran(tmp_path) == {"unsteady": 2, "fine": 1}


def test_one_that_fails_again_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "test_some.py", "-k", "unsteady or broken and 1")
    assert done.returncode == 1
    assert "UNSTEADY" not in done.stdout
    assert ran(tmp_path) == {"unsteady": 2, "broken1": 2}


def test_of_many_none_runs_again(tmp_path: Path) -> None:
    done = run(tmp_path, "test_some.py", "-k", "broken")
    assert done.returncode == 1
    assert ran(tmp_path) == {f"broken{number}": 1 for number in range(MOST + 1)}


def test_what_passes_runs_once(tmp_path: Path) -> None:
    done = run(tmp_path, "test_some.py", "-k", "fine")
    assert (done.returncode, "UNSTEADY" in done.stdout) == (0, False)
    assert ran(tmp_path) == {"fine": 1}


def test_nothing_to_run_is_told(tmp_path: Path) -> None:
    assert run(tmp_path, "test_some.py", "-k", "nowhere").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert run(tmp_path, "nowhere.py").returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("dist", ["loadgroup", "load"])
def test_processes_side_by_side(tmp_path: Path, dist: str) -> None:
    done = run(tmp_path, "test_some.py", "-n", "2", "--dist", dist, "-k", "unsteady or process or fine")
    assert done.returncode == 0, done.stdout + done.stderr
    named = {each.strip() for each in done.stdout.partition("UNSTEADY")[2].splitlines()[1:]}
    assert named == {"test_some.py::test_unsteady[x@y]", "test_some.py::test_that_ends_its_process"}
    found = ran(tmp_path)
    assert found.pop("ended") >= 2, "pytest-xdist itself may give it to another process"
    assert found == {"unsteady": 2, "fine": 1}


def test_options_are_kept() -> None:
    arguments = [
        "tests",
        "-m",
        "not long",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "--ignore=tests/unit",
        "-n3",
        "--one-loop",
    ]
    assert without_processes([*arguments, "--cov-report="]) == ["-m", "not long", "--one-loop", "--cov-report="]
