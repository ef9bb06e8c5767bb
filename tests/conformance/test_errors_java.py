"""Error codes beside the Java client's own: numbers, names, classes, and what helps against them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kclient.errors import ErrorCode, error_class

pytestmark = pytest.mark.maven

RENAMED = {"TimeoutError": "RequestTimedOutError"}
"""`TimeoutError` is Python's."""
ORACLE = Path(__file__).parent.parent / "java" / "ErrorsOracle.java"


@pytest.fixture(scope="module")
def java(kafka_jars_4: Path) -> dict[int, list[str]]:
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    return {int(code): rest for code, *rest in lines}


def test_codes_and_names(java: dict[int, list[str]]) -> None:
    assert {int(code): code.name for code in ErrorCode} == {code: name for code, (name, *_) in java.items()}


def test_classes_and_flags(java: dict[int, list[str]]) -> None:
    ours, theirs = {}, {}
    for code, (name, java_class, retriable, stale) in java.items():
        if name == "NONE":
            continue
        found = error_class(code)
        ours[name] = (found.__name__, str(found.retriable).lower(), str(found.refresh_metadata).lower())
        expected = java_class.removesuffix("Exception") + "Error"
        theirs[name] = (RENAMED.get(expected, expected), retriable, stale)
    assert ours == theirs
