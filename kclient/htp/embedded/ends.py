"""Tells other processes where the logs of an open store end, all at one moment: what a backup of it begins with.

The owner listens on the Unix socket `brk-0/ends.sock`, or each of several on one of its own, `ends-NUMBER.sock`; only
its user may connect. A line comes in (`ends`), one goes out (JSON), and the connection is closed. The event loop looks
at all logs in one turn, so nothing is appended between two of them. Where no such socket can be made, a backup takes
the lengths of the files one after another.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from kclient.concurrency import LoopHandle
from kclient.htp.embedded.processes import Processes, socket_of
from kclient.htp.embedded.socket_paths import socket_path
from kclient.htp.rows import parse_object, whole

logger: logging.Logger = logging.getLogger(__name__)

_SOCKET: Final = "ends.sock"
_QUESTION: Final = b"ends\n"
_PATIENCE_S: Final = 3.0
"""How long one side waits for the other; the rows stand still meanwhile."""
_WAITING: Final = 8


class LogEnd(NamedTuple):
    """Where a log ends, with what was written and is not synced yet."""

    segment: int
    """Base of its last segment, which may have no file yet."""
    size: int
    """Bytes of messages in that."""


Ends: TypeAlias = Mapping[int, LogEnd]
"""By the incarnation of the topic."""


class EndsSocket:
    """The owner's side. Made, started and stopped by the event loop's thread; `start` and `stop` block for a moment.

    Args:
        shard: The directory of the first shard.
        ends: Tells the ends of the logs that are open; called in the event loop.
        process: The number of this opening, where several processes have the store open; each has a socket.
    """

    def __init__(self, shard: str, ends: Callable[[], Ends], process: int | None = None) -> None:
        self._shard = shard
        self._name = _SOCKET if process is None else socket_of(process)
        self._ends = ends
        self._loop = LoopHandle()
        self._socket: socket.socket | None = None
        self._stopping = False
        # a daemon, like the threads that write
        self._thread = threading.Thread(target=self._run, name="kclient-htp-ends", daemon=True)

    def start(self) -> None:
        """Begin to answer; where that cannot be, a line in the log says what it means."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_path(self._shard, self._name) as path:
                Path(path).unlink(missing_ok=True)  # of an owner that was killed: the shard is locked by us
                listening.bind(path)
                Path(path).chmod(0o600)
            listening.listen(_WAITING)
            self._socket = listening
            self._thread.start()
        except (OSError, RuntimeError) as error:  # no such socket, or no thread
            listening.close()
            self._socket = None
            logger.info(
                "%s: no %s, a backup takes the lengths of the logs in turn (%s)", self._shard, self._name, error
            )

    def stop(self) -> None:
        """Answer nobody any more; blocks until the thread has ended."""
        self._stopping = True
        listening, self._socket = self._socket, None
        if listening is None:
            return
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # Linux: wakes who waits for connections
        with suppress(OSError), _connected(self._shard, self._name, 0.1):
            pass  # elsewhere: a connection does
        self._thread.join(2 * _PATIENCE_S)
        listening.close()
        with suppress(OSError):
            Path(self._shard, self._name).unlink()

    def abandon(self) -> None:
        """In a forked child: the parent answers, and nobody connects when it is gone."""
        listening, self._socket = self._socket, None
        if listening is not None:
            listening.close()

    # --- in the thread ---

    def _run(self) -> None:
        listening = self._socket
        while listening is not None and not self._stopping:
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if not self._stopping:
                    logger.warning("%s/%s takes no more connections: %s", self._shard, self._name, error)
                return
            with suppress(OSError), connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE_S)
        if self._stopping or _line(connection) != _QUESTION:
            return
        ends = self._ask()
        if ends is not None:
            told = {"ends": [[incarnation, *end] for incarnation, end in ends.items()]}
            connection.sendall(json.dumps(told).encode() + b"\n")

    def _ask(self) -> Ends | None:
        found: list[Ends] = []
        done = threading.Event()

        def look() -> None:
            found.append(self._ends())
            done.set()

        if not self._loop.post(look) or not done.wait(_PATIENCE_S):
            return None
        return found[0]


def ask_ends(shard: str) -> Ends | None:
    """Where the logs end that the owners of a store have open, in all shards; None if one does not answer.

    Args:
        shard: The directory of the first shard.
    """
    names = [socket_of(process) for process in Processes(shard).others()] or [_SOCKET]
    found: dict[int, LogEnd] = {}
    for name in names:
        ends = _ask_one(shard, name)
        if ends is None:
            return None
        found.update(ends)
    return found


def _ask_one(shard: str, name: str) -> Ends | None:
    try:
        with _connected(shard, name, _PATIENCE_S) as connection:
            connection.sendall(_QUESTION)
            answer = _line(connection)
        rows = parse_object(answer)["ends"]
        return {whole(incarnation): LogEnd(whole(segment), whole(size)) for incarnation, segment, size in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.info("%s/%s does not answer: %s", shard, name, error)
        return None


@contextmanager
def _connected(shard: str, name: str, timeout: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, socket_path(shard, name) as path:
        connection.settimeout(timeout)
        connection.connect(path)
        yield connection


def _line(connection: socket.socket) -> bytes:
    """A line, whole unless the other side ends before."""
    found = bytearray()
    while not found.endswith(b"\n"):
        data = connection.recv(1 << 16)
        if not data:
            break
        found += data
    return bytes(found)
