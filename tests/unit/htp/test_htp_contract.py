"""Every backend of the package keeps the contract, and the contract finds what breaks it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kclient.htp.contract.report import FAILED, NOT_CLAIMED, NOT_TESTABLE, PASSED
from tests.contract_mutants import MUTANTS
from tests.contract_run import ROOT, run_contract

pytestmark = pytest.mark.timeout(300)

SCHEMES = {"plain": "tests.plain_store:open_plain", "sqlite": "htp_sqlite:open_sqlite"}
EXAMPLE = ROOT / "examples" / "sqlite_backend"
FAULTS = {"write", "full", "sync", "damage", "fenced_sends, unknown"}
"""What tests of faults need."""
NOT_CLAIMED_BY = {
    "memory": {"durable", "exclusive"},
    "embedded": set(),
    "plain": {
        "durable",
        "exclusive",
        "find_by_timestamp",
        "nowait",
        "ordinal_positions",
        "positions",
        "rewrite",
        "segments",
        "shared",
    },
    "sqlite": {"exclusive", "find_by_timestamp", "nowait", "ordinal_positions", "rewrite", "segments", "shared"},
}
SEVERAL_BROKERS = {"memory", "embedded"}
NOT_TESTABLE_WITH = {
    "memory": {"sync", "damage"},
    "embedded": {"fenced_sends, unknown", "required", "fenced_sends"},  # of two openings: it is open once at a time
}

BACKENDS = [(backend, loop) for backend in NOT_CLAIMED_BY for loop in ("asyncio", "trio")]
AT_ONCE = {("memory", "trio")}


@pytest.mark.parametrize(
    ("backend", "loop"),
    [pytest.param(*each, marks=() if each in AT_ONCE else pytest.mark.slow) for each in BACKENDS],
)
def test_a_backend_keeps_the_contract(backend: str, loop: str, tmp_path: Path) -> None:
    """And is found to claim what it does."""
    url = f"{backend}:store{'?brokers=3' if backend in SEVERAL_BROKERS else ''}"
    done = run_contract(url, tmp_path, "-k", loop, schemes=SCHEMES, paths=(EXAMPLE,))
    assert done.code == 0, done.output
    rows = done.rows()
    verdicts = {
        verdict: {needed for (_, needed), row in rows.items() if row[2] == verdict}
        for verdict in (PASSED, FAILED, NOT_CLAIMED, NOT_TESTABLE)
    }
    assert verdicts[FAILED] == set()
    assert verdicts[NOT_CLAIMED] == NOT_CLAIMED_BY[backend]
    untested = {needed.replace("fault ", "") for needed in verdicts[NOT_TESTABLE]}
    assert untested == NOT_TESTABLE_WITH.get(backend, FAULTS)
    assert "required" in verdicts[PASSED]
    assert all(failed == 0 for _, failed, _ in rows.values())
    assert len({subject for subject, _ in rows}) == 18
    if backend == "embedded":
        left = [path.suffix for path in (tmp_path / "store" / "brk-0" / "topics").iterdir()]
        assert left == [".orphan"], "what the manager knew no more when it was opened again is set aside, not deleted"


FIRST_OF_EACH = {mutant.file: name for name, mutant in reversed(MUTANTS.items())}
"""One mistake for each file of tests."""


@pytest.mark.slow
@pytest.mark.parametrize("names", [sorted(FIRST_OF_EACH.values()), sorted(MUTANTS)], ids=["a few", "all"])
def test_each_planted_mistake_is_found(names: list[str]) -> None:
    command = [sys.executable, "-m", "tests.contract_mutants", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found) == names
    assert [name for name, failed in found.items() if not failed] == [], "nobody notices these"


# --- the report ---


@pytest.mark.slow
def test_a_backend_that_does_not_do_what_it_claims_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from kclient.htp.memory import open_memory\n"
        "from kclient.htp.memory.manager import MemoryManager\n"
        "async def release(self, lease): pass\n"
        "MemoryManager.release = release\n"
    )
    done = run_contract(
        "broken:store",
        tmp_path,
        "-k",
        "asyncio and leases",
        schemes={"broken": "broken:open_memory"},
        paths=(tmp_path,),
    )
    assert done.code == 1, done.output
    passed, failed, verdict = done.rows()["leases", "required"]
    assert verdict == FAILED
    assert passed > 0 < failed
    assert "It does not do what it claims: leases (required)." in done.output


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nothing:store", "the store nothing:store cannot be opened: ConfigError: No HTP backend for 'nothing'"),
        pytest.param(
            "embedded:/dev/null/data",
            "the store embedded:/dev/null/data cannot be opened: StorageError: ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "",
            "the contract of HTP is tested over a store: name it, as --htp memory:contract",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_store_that_cannot_be_opened_ends_the_run(url: str, why: str, tmp_path: Path) -> None:
    done = run_contract(url, tmp_path, "-k", "test_a_domain")
    assert done.code == 4
    assert why in done.output
    assert "HTP contract of" not in done.output


@pytest.mark.slow
def test_processes_side_by_side_tell_why_a_store_cannot_be_opened(tmp_path: Path) -> None:
    done = run_contract("nothing:store", tmp_path, "-k", "test_a_domain", "-n", "2", every_plugin=True)
    assert done.code == pytest.ExitCode.INTERRUPTED
    assert "the store nothing:store cannot be opened: ConfigError: No HTP backend for 'nothing'" in done.output
    assert "INTERNALERROR" not in done.output


@pytest.mark.slow
def test_on_a_terminal_the_table_is_drawn(tmp_path: Path) -> None:
    done = run_contract("memory:store", tmp_path, "-k", "asyncio and trimming", "--color=yes", every_plugin=True)
    assert done.code == 0
    assert "trimming" in done.output
    assert "─" in done.output
    assert done.rows() == {}, "which is for people"


@pytest.mark.slow
def test_processes_side_by_side_make_one_table(tmp_path: Path) -> None:
    done = run_contract(
        "sqlite:store", tmp_path, "-k", "asyncio and trimming", "-n", "2",
        schemes=SCHEMES, paths=(EXAMPLE,), every_plugin=True,
    )  # fmt: skip
    assert done.code == 0, done.output
    assert done.rows()["trimming", "required"] == (7, 0, PASSED)


# --- what hangs, or raises what nobody expects ---

TROUBLED = """
import threading, time
from contextlib import suppress
import anyio
from kclient.htp import memory
from kclient.htp.memory import MemoryStore, open_memory
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.topic import MemoryTopic

status, create_domain, aclose = MemoryTopic.status, MemoryManager.create_domain, MemoryStore.aclose

class Odd(BaseException):
    pass

async def blocks(self, *args, **options):
    threading.Event().wait()

async def hangs(self, *args, **options):
    await anyio.sleep(10**6)

async def is_stubborn(self, *args, **options):
    while True:
        with suppress(BaseException):
            await anyio.sleep(10**6)

async def raises(self, *args, **options):
    raise Odd("nobody knows this one")

async def closes_never(self):
    await aclose(self)
    await anyio.sleep(10**6)
"""


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("MemoryTopic.status = blocks", "could not be cancelled"),
        pytest.param("MemoryTopic.status = hangs", "TimeoutError", marks=pytest.mark.slow),
        pytest.param("MemoryTopic.status = raises", "nobody knows this one", marks=pytest.mark.slow),
        pytest.param("MemoryManager.create_domain = blocks", "could not be cancelled", marks=pytest.mark.slow),
        pytest.param("MemoryManager.create_domain = hangs", "TimeoutError", marks=pytest.mark.slow),
        pytest.param("MemoryManager.create_domain = raises", "nobody knows this one", marks=pytest.mark.slow),
        pytest.param("MemoryTopic.status = is_stubborn", "could not be cancelled", marks=pytest.mark.slow),
    ],
)
def test_a_backend_in_trouble_fails_and_the_run_ends(trouble: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "troubled.py").write_text(f"{TROUBLED}\n{trouble}\n")
    tests = "asyncio and (test_the_buffer_may_be_used_again or test_a_domain_is_made_once)"
    done = run_contract(
        "troubled:store", tmp_path, "-k", tests, "--htp-timeout", "1",
        schemes={"troubled": "troubled:open_memory"}, paths=(tmp_path,),
    )  # fmt: skip
    assert done.code == 1, done.output
    assert told in done.output
    assert "sending (required)" in done.output.partition("It does not do what it claims:")[2]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        pytest.param(
            "MemoryStore.aclose = closes_never",
            "it was not opened, asked and closed within 1 seconds",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "MemoryStore.__aenter__ = blocks",
            "it was not opened, asked and closed within 1 seconds",
            marks=pytest.mark.slow,
        ),
        pytest.param("MemoryStore.__aenter__ = raises", "nobody knows this one", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_hangs_where_it_is_opened_ends_the_run(trouble: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "troubled.py").write_text(f"{TROUBLED}\n{trouble}\n")
    done = run_contract(
        "troubled:store", tmp_path, "-k", "test_a_domain", "--htp-timeout", "1",
        schemes={"troubled": "troubled:open_memory"}, paths=(tmp_path,),
    )  # fmt: skip
    assert done.code == 4, done.output
    assert told in done.output
