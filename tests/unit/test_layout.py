"""The project speaks of itself alone, and what it ships is complete."""

import subprocess
import sys
import tomllib
from pathlib import Path

import kclient

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == kclient.__version__


def test_the_required_dependencies_stay_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names == {"anyio", "crc32c", "python-snappy", "lz4", "zstandard", "typing-extensions"}


def test_every_package_has_its_init_and_the_types_are_shipped() -> None:
    folders = {path.parent for path in (ROOT / "kclient").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    assert (ROOT / "kclient" / "py.typed").exists()


def test_every_benchmark_can_be_loaded() -> None:
    """They run for minutes, and nobody runs them after each change."""
    names = sorted(f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__main__")
    assert len(names) > 10
    loaded = subprocess.run([sys.executable, "-c", f"import {', '.join(names)}"], cwd=ROOT, check=False)
    assert loaded.returncode == 0
