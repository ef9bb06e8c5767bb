"""Every example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# What the last line of each must begin with; `with_spark` and the demonstration need Java.
EXPECTED = {
    "with_asyncio.py": "read 100 records; the last: hello",
    "with_trio.py": "read 100 ticks in order",
    "blocking.py": "1001 orders, 749,250.00 in all",
    "rebalance_listener.py": "4000 clicks counted once each",
    "embedded.py": "1 entries in",
    "exactly_once.py": "2000 orders, each billed once",
    "arrow_columns.py": "pandas: records by partition",
    "with_spark.py": "tock: 1000",
}


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, "flights_demo.py"}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demonstration(tmp_path: Path) -> None:
    from tests.conftest import require_java

    require_java()
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "flights_demo.py"), "3000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    totals = next(line for line in result.stdout.splitlines() if line.startswith("│ read"))
    assert totals.count("3,000") == 5, "every way of reading has read everything"
    assert "✗" not in result.stdout
    assert "the same: 3000 records, by offset" in result.stdout
    assert (tmp_path / "out/demo/flights.png").stat().st_size > 10_000
    assert "<img" in (tmp_path / "out/demo/audit.html").read_text()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark if "spark" in name else ()) for name in EXPECTED]
)
def test_example(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "spark" in name:
        from tests.conftest import require_java

        require_java()
    arguments = [str(tmp_path / "data")] if name == "embedded.py" else []
    result = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith(EXPECTED[name]), result.stdout


def test_an_example_whose_reader_goes_away_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLES / "rebalance_listener.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        try:
            _, told = process.communicate(timeout=50)
        finally:
            process.kill()
    assert b"BrokenPipeError" in told
