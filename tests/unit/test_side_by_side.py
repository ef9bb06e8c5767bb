"""What `make check` runs its parts with: each failure is shown, and an interruption ends everything."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "side_by_side.py"

MAKEFILE = """
one two:
	@echo work; echo $@ is done
bad worse:
	@echo the cause of $@; exit 3
waits: ; @echo $$$$ > pid; exec sleep 600
"""

if (make := shutil.which("make")) is None:
    pytest.skip("needs make on PATH", allow_module_level=True)


def _run(folder: Path, *targets: str) -> subprocess.Popen[str]:
    (folder / "Makefile").write_text(MAKEFILE)
    command = [sys.executable, str(SCRIPT), str(make), *targets]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_what_passes_is_one_line(tmp_path: Path) -> None:
    with _run(tmp_path, "one", "two") as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    assert sorted(output.splitlines()) == ["passed one (0 s): one is done", "passed two (0 s): two is done"]


def test_what_fails_is_shown_at_the_end(tmp_path: Path) -> None:
    with _run(tmp_path, "bad", "one", "worse") as process:
        output, _ = process.communicate()
    assert process.returncode == 1
    lines = output.splitlines()
    shown = lines.index("===== bad =====")
    assert "passed one (0 s): one is done" in lines[:shown]
    assert "the cause of bad" in lines[shown:]
    assert "the cause of worse" in lines[shown:]
    assert lines[-1] == "FAILED: bad, worse"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_everything(by: signal.Signals, tmp_path: Path) -> None:
    with _run(tmp_path, "one", "waits", *["two"] * 100) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("passed ")  # so it takes signals
        while not (tmp_path / "pid").exists() or not (pid := (tmp_path / "pid").read_text()).endswith("\n"):
            assert process.poll() is None
        process.send_signal(by)
        output, _ = process.communicate()
    assert process.returncode == 130
    assert output.splitlines()[-1] == "interrupted"
    assert not psutil.pid_exists(int(pid))
