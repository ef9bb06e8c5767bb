"""The examples for operators: a unit of systemd, a container file, and a file of settings."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kclient.cli.quick import quick_gateway
from kclient.gateway.config import BrokerConfig
from kclient.gateway.security.listeners import listeners_of
from kclient.gateway.server_properties import read_server_properties
from tests.unit.cli.test_gateway_operation import gateway

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "operation"
UNIT = EXAMPLES / "kclient-gateway.service"
INSTRUCTIONS = {
    "CMD", "ENTRYPOINT", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "VOLUME",
}  # fmt: skip


def test_each_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {UNIT.name, "Containerfile", "server.properties"}


def test_the_file_of_settings() -> None:
    found = read_server_properties(EXAMPLES / "server.properties")
    assert found.log_dirs is None
    config = BrokerConfig(found.settings)
    assert [str(each.told) for each in listeners_of(config)] == ["localhost:9092"]
    assert config.get_int("log.dir.min.free.bytes") == 1 << 30


def unit_settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text("utf-8").splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_is_one(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    script = tmp_path / "kclient"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/kclient/bin/kclient", str(script)))
    outcome = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    told = [line for line in outcome.stderr.splitlines() if UNIT.name in line]
    assert told == []
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.slow
def test_what_the_unit_starts(tmp_path: Path) -> None:
    import socket

    settings = unit_settings()
    program, *words = shlex.split(settings["ExecStart"])
    assert program == "/opt/kclient/bin/kclient"
    assert quick_gateway(words) is not None
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert (settings["Type"], settings["KillMode"]) == ("notify", "mixed")
    text = (
        (EXAMPLES / "server.properties")
        .read_text("utf-8")
        .replace(":9092", ":0")
        .replace("PLAINTEXT://:0", "PLAINTEXT://127.0.0.1:0")
    )
    (tmp_path / "server.properties").write_text(text.replace("=1073741824", "=1"))
    others = {"/etc/kclient/server.properties": str(tmp_path / "server.properties"), "127.0.0.1:9404": "127.0.0.1:0"}
    given = [others.get(word, word) for word in words[1:] if word not in ("--data", "/var/lib/kclient")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        usec = str(int(settings["WatchdogSec"]) * 1_000_000)
        with gateway(tmp_path, *given, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC=usec):
            assert notified.recv(4096).startswith(b"READY=1")


def instructions() -> list[tuple[str, str]]:
    text = (EXAMPLES / "Containerfile").read_text("utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1].strip()) for line in lines]


def test_the_instructions_of_the_container_file() -> None:
    found = instructions()
    assert found[0][0] == "FROM"
    assert {name for name, _ in found} == INSTRUCTIONS
    told = dict(found)
    entry, command = json.loads(told["ENTRYPOINT"]), json.loads(told["CMD"])
    assert entry[0] == "kclient"
    assert quick_gateway([*entry[1:], *command]) is not None
    assert told["STOPSIGNAL"] == "SIGTERM"
    ports = {word.rpartition(":")[2] for word in command if ":" in word}
    assert set(told["EXPOSE"].split()) == ports
    assert entry[entry.index("--data") + 1] == told["VOLUME"]
    extras = re.search(r"htp-kclient\[([a-z,]+)\]", told["RUN"])
    assert extras is not None
    project = (EXAMPLES.parents[1] / "pyproject.toml").read_text("utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras[1].split(","))
    for command_line in told["RUN"].split("&&"):
        outcome = subprocess.run(["sh", "-n", "-c", command_line], capture_output=True, timeout=20, check=False)
        assert outcome.returncode == 0, outcome.stderr


@pytest.mark.slow
def test_what_the_container_runs(tmp_path: Path) -> None:
    told = dict(instructions())
    words = [*json.loads(told["ENTRYPOINT"])[2:], *json.loads(told["CMD"])]
    del words[words.index("--data") : words.index("--data") + 2]
    given = [re.sub(r"^(0\.0\.0\.0|localhost):\d+$", "127.0.0.1:0", word) for word in words]
    with gateway(tmp_path, *given) as running:
        check = json.loads(told["HEALTHCHECK"].partition("CMD ")[2])
        assert check[:2] == ["python", "-c"]
        address = running.url("metrics").removeprefix("http://")
        assert "127.0.0.1:9404" in check[2]
        code = check[2].replace("127.0.0.1:9404", address)
        assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
    assert outcome.returncode == 1
    assert all(json.loads(line) for line in running.log.read_text().splitlines())
