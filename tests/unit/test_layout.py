"""The project speaks of itself alone, and what it ships is complete."""

import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import kclient

ROOT = Path(__file__).resolve().parents[2]

NAMED_TWICE = {
    "Admin", "Consumer", "Gateway", "Producer", "ShareConsumer",  # each with its blocking twin
    "ConfigResource",  # Kafka's name for a part of a message, and for what its admin client is told
    "TopicExistsError",  # of Kafka's topics, and of HTP's
}  # fmt: skip


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


@pytest.mark.slow  # it loads every optional package
def test_every_benchmark_can_be_loaded() -> None:
    """They run for minutes, and nobody runs them after each change."""
    names = sorted(f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__main__")
    assert len(names) > 10
    loaded = subprocess.run([sys.executable, "-c", f"import {', '.join(names)}"], cwd=ROOT, check=False)
    assert loaded.returncode == 0


@pytest.mark.slow
def test_a_class_shares_its_name_with_no_other() -> None:
    """Who looks for a name finds one thing; those that a file keeps to itself do not count."""
    files: dict[str, set[Path]] = defaultdict(set)
    for path in (ROOT / "kclient").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].add(path.relative_to(ROOT))
    assert {name: paths for name, paths in files.items() if len(paths) > 1}.keys() == NAMED_TWICE
