"""Kafka's own tools, many calls in one JVM: a JVM of its own takes a second and more for each."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.kafka_artifacts import kafka_jars
from tests.kafka_server import JavaTools

_SOURCE = Path(__file__).parent / "java" / "ToolsRunner.java"
_NUMBER = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class EndedTool:
    """What a tool left behind."""

    code: int
    """Its exit code."""
    out: str
    """What it wrote on standard output, without what was logged."""
    err: str
    """What it wrote on standard error."""

    @property
    def lines(self) -> list[str]:
        """Of standard output, those that are not empty."""
        return [line for line in self.out.splitlines() if line.strip()]

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.lines]


class KafkaTools:
    """Main classes of one Kafka release, run one after another in one process.

    Args:
        version: The release.
        folder: For what is compiled, and for the log.
    """

    def __init__(self, version: str, folder: Path) -> None:
        jars = f"{kafka_jars(version)}/*"
        subprocess.run(["javac", "-d", str(folder), "-cp", jars, str(_SOURCE)], check=True, timeout=120)
        self._command = JavaTools(version, folder, folder).command("ToolsRunner")
        self._log = folder / "tools.log"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, main_class: str, *arguments: str, given: str = "", timeout: float = 60, code: int = 0) -> EndedTool:
        """Run one tool.

        Args:
            main_class: Its Java class, with the package.
            *arguments: Of the command line.
            given: What it finds on standard input.
            timeout: Seconds, after which the process is killed.
            code: The exit code that is expected.

        Raises:
            RuntimeError: If it ended with another exit code, or not in time.
        """
        ended = self.call(main_class, *arguments, given=given, timeout=timeout)
        if ended.code != code:
            raise RuntimeError(f"{main_class} {arguments} ended with {ended.code}:\n{ended.out}\n{ended.err}")
        return ended

    def call(self, main_class: str, *arguments: str, given: str = "", timeout: float = 60) -> EndedTool:
        """The same with any exit code."""
        texts = [text.encode() for text in (given, main_class, *arguments)]
        call = _NUMBER.pack(len(texts)) + b"".join(_NUMBER.pack(len(text)) + text for text in texts)
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(timeout, process.kill)
        late.start()
        try:
            process.stdin.write(call)
            process.stdin.flush()
            (code,) = _NUMBER.unpack(_exactly(process.stdout, _NUMBER.size))
            return EndedTool(code, _text(process.stdout), _text(process.stdout))
        except (OSError, EOFError) as error:
            self.close()
            raise RuntimeError(f"{main_class} {arguments} did not end:\n{self._log.read_text()[-4000:]}") from error
        finally:
            late.cancel()
            late.join()

    def close(self) -> None:
        """End the process; the next call starts another one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written is of no use any more
                    stream.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )


@contextlib.contextmanager
def kafka_tools(version: str, folder: Path) -> Iterator[KafkaTools]:
    """The tools of a release, closed at the end."""
    tools = KafkaTools(version, folder)
    try:
        yield tools
    finally:
        tools.close()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) != size:
        raise EOFError("the process has ended")
    return found


def _text(stream: IO[bytes]) -> str:
    (size,) = _NUMBER.unpack(_exactly(stream, _NUMBER.size))
    return _exactly(stream, size).decode()
