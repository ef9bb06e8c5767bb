"""Clients that outlive the modules they were made of: the end of the interpreter is silent about them."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import json, sys
import kclient, kclient.sync

client = {client}(bootstrap_servers="memory:end")
if {started}:
    client.start() if hasattr(client, "start") else client.topics()
json.kept = client  # a module that came before and is emptied after
sys.modules_kept = list(sys.modules.values())
del client
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "started"),
    [
        ("kclient.Producer", False),
        ("kclient.Consumer", False),
        ("kclient.sync.Producer", True),
        ("kclient.sync.Consumer", True),
        ("kclient.sync.Admin", True),
    ],
)
def test_modules_that_are_emptied_say_nothing(client: str, started: bool) -> None:
    code = CODE.format(client=client, started=started)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr
