"""A bell that each process with a data directory open has for the others, who ring it after they have committed.

It is the Unix socket `brk-0/bell-NUMBER.sock`, to which a datagram is sent: so nobody has to look many times a second
whether something has changed. A ring may get lost; who has heard none looks all the same, from time to time.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kclient.htp.embedded.processes import BELL, Processes, bell_of
from kclient.htp.embedded.socket_paths import socket_path

logger: logging.Logger = logging.getLogger(__name__)

ACTIVE_S: Final = 0.3
"""Whoever has heard the bell looks often for so long."""
_BETWEEN_S: Final = 0.1
"""It is not rung more often: whoever heard it looks still."""
_STOPPING_S: Final = 1.0


class Bell:
    """The bell of one opening, and how it rings those of the others.

    Args:
        processes: Tell its number, and where the bells are.
    """

    def __init__(self, processes: Processes) -> None:
        self._directory = processes.path
        self._name = bell_of(processes.number)
        self._socket: socket.socket | None = None
        self._heard: Callable[[], object] = lambda: None
        self._rung = 0.0
        self._stopping = False
        # a daemon, like the threads that write
        self._thread = threading.Thread(target=self._listen, name="kclient-htp-bell", daemon=True)

    def start(self, heard: Callable[[], object]) -> bool:
        """Have `heard()` called, in a thread, when somebody rings; whether that is possible here."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with socket_path(self._directory, self._name) as path:
                made.bind(path)
                Path(path).chmod(0o600)
            self._socket, self._heard = made, heard
            self._thread.start()
        except (OSError, RuntimeError) as error:  # no such socket, or no thread
            made.close()
            self._socket = None
            logger.info("%s: no %s, it is looked often what others change (%s)", self._directory, self._name, error)
            return False
        return True

    def ring(self) -> None:
        """Something has been committed: have the others look; called by one thread."""
        now = time.monotonic()
        sender = self._socket
        if sender is None or now - self._rung < _BETWEEN_S:
            return
        self._rung = now
        with suppress(OSError):
            for name in os.listdir(self._directory):  # noqa: PTH208  (as fast as it gets)
                if name.startswith(BELL) and name != self._name:
                    self._ring(sender, name)

    def _ring(self, sender: socket.socket, name: str) -> None:
        with suppress(OSError), socket_path(self._directory, name) as path:  # it has just ended, or is stopped
            sender.sendto(b"1", socket.MSG_DONTWAIT, path)

    def stop(self) -> None:
        """Hear nothing any more; blocks until the thread has ended."""
        made, self._socket = self._socket, None
        if made is None:
            return
        self._stopping = True
        with suppress(OSError):
            made.shutdown(socket.SHUT_RDWR)  # Linux: wakes who waits for datagrams
        self._ring(made, self._name)  # elsewhere: one does
        self._thread.join(_STOPPING_S)
        made.close()
        with suppress(OSError):
            Path(self._directory, self._name).unlink()

    def abandon(self) -> None:
        """In a forked child: it is the parent's."""
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    def _listen(self) -> None:
        made = self._socket
        while made is not None and not self._stopping:
            try:
                made.recv(16)
            except OSError as error:
                if not self._stopping:
                    logger.warning("%s/%s hears no more: %s", self._directory, self._name, error)
                return
            if not self._stopping:
                self._heard()
