"""Runs the contract of HTP as a vendor does: pytest in a process of its own, over a store by its URL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NEEDED_PLUGINS = ["-p", "anyio", "-p", "kclient.testing.plugin"]
"""Options of pytest that load what the contract needs, where `PYTEST_DISABLE_PLUGIN_AUTOLOAD` leaves out the rest."""


class ContractRun(NamedTuple):
    """What came of it."""

    code: int
    output: str

    def rows(self) -> dict[tuple[str, str], tuple[int, int, str]]:
        """Tests passed and failed, and the verdict, by subject and need, as the table tells."""
        found = re.findall(
            r"^(\S.*?)  +(\S.*?)  +(\d+) +(\d+) +(passed|failed|not claimed|not testable here)$",
            self.output,
            re.MULTILINE,
        )
        return {(row[0], row[1]): (int(row[2]), int(row[3]), row[4]) for row in found}


def run_contract(
    url: str,
    folder: Path,
    *options: str,
    schemes: Mapping[str, str] | None = None,
    paths: tuple[Path, ...] = (ROOT,),
    every_plugin: bool = False,
) -> ContractRun:
    """Run the contract's tests.

    Args:
        url: Of the store.
        folder: Where the run takes place; nothing there is pytest's configuration.
        options: Of pytest.
        schemes: Entry points of a backend that is not installed: scheme to `module:function`.
        paths: Where its modules are.
        every_plugin: Whether pytest loads all plugins that are installed, as it does for a vendor. That takes half of
            the time of a short run.
    """
    installed = folder / "installed"
    if schemes:
        about = installed / "vendor-1.0.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
        lines = [f"{scheme} = {place}\n" for scheme, place in schemes.items()]
        (about / "entry_points.txt").write_text("[kclient.htp]\n" + "".join(lines))
    # bytecode is kept, or every run would compile pytest's plugins and rewrite the tests anew
    apart = ("PYTEST_", "COV_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(apart)}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [installed, *paths, ROOT]))
    command = [sys.executable, "-m", "pytest"]
    if not every_plugin:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command += NEEDED_PLUGINS
    command += ["--pyargs", "kclient.htp.contract", "--htp", url]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-q", "--strict-markers", "-W", "error", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return ContractRun(done.returncode, done.stdout + done.stderr)
