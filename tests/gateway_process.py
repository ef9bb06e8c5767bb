"""`kclient gateway` as a child process that tests start, kill and start again on the same data and port."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kclient.sync import Admin
from tests.kafka_server import QUICK_GROUPS


def wait_for_gateways(admin: Admin, number: int, seconds: float = 30) -> None:
    """Until the gateway that an admin client asks has heard of so many on its store, itself included."""
    until = time.monotonic() + seconds
    while len(nodes := admin.describe_cluster().nodes) != number:
        assert time.monotonic() < until, nodes
        time.sleep(0.05)


class GatewayProcess:
    """A gateway on embedded HTP; `bootstrap` is its address once it was started."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        durability: str = "synced",
        config: Mapping[str, str] | None = None,
        open_files: int | None = None,
        options: Sequence[str] = (),
        listens: bool = True,
    ) -> None:
        self.data = data
        self.port = port
        self.bootstrap = f"127.0.0.1:{port}"
        self.startup_line = ""
        self.startup_seconds = 0.0
        self.stderr: list[str] = []
        self._durability = durability
        self._config = {
            "group.initial.rebalance.delay.ms": "0", "num.partitions": "4", **QUICK_GROUPS, **(config or {}),
        }  # fmt: skip
        self.options: Sequence[str] = options
        """Of the command, beside those."""
        self._listens = listens
        """Whether it is told where; else its settings say so."""
        self._open_files = open_files
        """How many the process may have; None for as many as this one."""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "kclient", "gateway", "--data", str(self.data)]
        if self._open_files is not None:
            command = ["sh", "-c", f'ulimit -n {self._open_files} && exec "$@"', "sh", *command]
        command += ["--listen", self.bootstrap] if self._listens else []
        command += ["--durability", self._durability]
        command += self.options
        for name, value in self._config.items():
            command += ["--config", f"{name}={value}"]
        started = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.startup_line = self._process.stdout.readline()
        self.startup_seconds = time.perf_counter() - started
        found = re.search(r"127\.0\.0\.1:(\d+)", self.startup_line)
        if found is None:
            self.stop(kill=True)
            raise RuntimeError(f"the gateway did not start: {self.startup_line!r}\n{''.join(self.stderr)}")
        self.port = int(found.group(1))
        self.bootstrap = found.group()

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        self.stderr.extend(self._process.stderr)

    def stop(self, *, kill: bool = False, timeout: float = 20) -> int:
        """Stops the process with SIGTERM, or SIGKILL; returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        try:
            code = process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        if self._reader is not None:
            self._reader.join(timeout=5)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return code
