"""The public methods of the clients beside those of Java's interfaces: none is forgotten, none is told of wrongly."""

from __future__ import annotations

import runpy
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import kclient
import kclient.sync

ROOT = Path(__file__).parent.parent.parent
ORACLE = ROOT / "tests" / "java" / "MethodsOracle.java"
SCRIPT = ROOT / "docs" / "generate" / "java_methods.py"
CLIENTS = ("Admin", "Consumer", "Producer", "ShareConsumer")
FACES = {"kclient": kclient, "kclient.sync": kclient.sync}

TABLES: dict[str, Any] = runpy.run_path(str(SCRIPT))
RENAMED: Mapping[str, Mapping[str, str]] = TABLES["RENAMED"]
LEFT_OUT: Mapping[str, Mapping[str, str]] = TABLES["LEFT_OUT"]
MISSING: Mapping[str, Mapping[str, str]] = TABLES["MISSING"]


@pytest.fixture(scope="module")
def java(kafka_jars_4: Path) -> dict[str, dict[str, bool]]:
    """Java's methods by client, and whether they are deprecated."""
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, dict[str, bool]] = {client: {} for client in CLIENTS}
    for line in result.stdout.splitlines():
        client, name, deprecated = line.split("\t")
        found[client][name] = deprecated == "true"
    return found


def faces_with(client: str, method: str) -> list[str]:
    """Which of our faces have it."""
    return [name for name, module in FACES.items() if callable(getattr(getattr(module, client), method, None))]


def without_counterpart(client: str) -> Iterator[tuple[str, str]]:
    """Java's methods that the tables say have none here, and why."""
    yield from LEFT_OUT[client].items()
    yield from MISSING[client].items()


@pytest.mark.maven
@pytest.mark.parametrize("client", CLIENTS)
def test_every_method_of_java_is_there_or_told_of(client: str, java: dict[str, dict[str, bool]]) -> None:
    assert java[client]
    told = dict(without_counterpart(client))
    forgotten = {
        name: f"{client}.{TABLES['ours'](client, name)} is only in {faces or 'no face'}"
        for name in java[client]
        if name not in told and (faces := faces_with(client, TABLES["ours"](client, name))) != list(FACES)
    }
    assert forgotten == {}, f"implement them, or tell of them in {SCRIPT.name}"


@pytest.mark.maven
@pytest.mark.parametrize("client", CLIENTS)
def test_the_tables_tell_of_methods_that_java_has(client: str, java: dict[str, dict[str, bool]]) -> None:
    told = {*RENAMED[client], *dict(without_counterpart(client))}
    assert told - java[client].keys() == set()
    deprecated = {name for name, old in java[client].items() if old}
    assert deprecated - LEFT_OUT[client].keys() - RENAMED[client].keys() == set()


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_said_to_have_no_counterpart_has_none(client: str) -> None:
    found = {
        name: faces
        for name, _ in without_counterpart(client)
        if (faces := faces_with(client, TABLES["in_snake_case"](name)))
    }
    assert found == {}, f"they are there by now: take them out of LEFT_OUT and MISSING in {SCRIPT.name}"


@pytest.mark.parametrize("client", CLIENTS)
def test_the_tables_contradict_neither_each_other_nor_the_rule(client: str) -> None:
    assert len({*RENAMED[client], *LEFT_OUT[client], *MISSING[client]}) == sum(
        len(table[client]) for table in (RENAMED, LEFT_OUT, MISSING)
    )
    assert all(reason.endswith(".") and len(reason) > 20 for _, reason in without_counterpart(client))
    plain = {name for name in RENAMED[client] if faces_with(client, TABLES["in_snake_case"](name))}
    assert plain == set(), "they have Java's name here"


def test_the_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "reference" / "java-methods.md"
    assert page.read_text("utf-8") == TABLES["render"](), f"run: python {SCRIPT} > {page}"
