"""The programs in the guides run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway_process import GatewayProcess

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"


def snippets(page: str) -> list[str]:
    """The Python blocks of a page; no block is a failure of this test, not of the page."""
    found = re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text("utf-8"), re.DOTALL)
    assert found
    return found


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text, "utf-8")
    return run(folder, "-W", "error::ResourceWarning", "program.py")


def test_getting_started(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    try:
        asynchronous, blocking = (
            text.replace("127.0.0.1:9092", gateway.bootstrap) for text in snippets("getting-started.md")
        )
        assert re.search(r"^greetings \d 0 b'hello'$", program(tmp_path, asynchronous), re.MULTILINE)
        assert program(tmp_path, blocking).count("b'customer-1'") == 3
    finally:
        gateway.stop()


def test_clients(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("bootstrap.servers=localhost:9092\n", "utf-8")
    shown = program(tmp_path, "\n".join(snippets("clients.md")))
    assert "0 1 None 4" in shown
    assert shown.endswith("orders-0 2 2 0\n")


def test_gateway(tmp_path: Path) -> None:
    (text,) = snippets("gateway.md")
    assert program(tmp_path, text).startswith("127.0.0.1:")


@pytest.mark.parametrize("number", [0, 1])
def test_testing(tmp_path: Path, number: int) -> None:
    (tmp_path / "test_guide.py").write_text(snippets("testing.md")[number], "utf-8")
    assert "passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guide.py")


def test_testing_without_pytest(tmp_path: Path) -> None:
    program(tmp_path, snippets("testing.md")[2])
