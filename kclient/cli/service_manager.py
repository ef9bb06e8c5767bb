"""What a gateway tells systemd, if that has started it: `sd_notify`, datagrams to the socket of `NOTIFY_SOCKET`.

A unit with `Type=notify` is started when it is told so, and one with `WatchdogSec` is started again when it has not
been told for so long that the event loop runs.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Final

import anyio

logger: logging.Logger = logging.getLogger("kclient.gateway")

_SOCKET: Final = "NOTIFY_SOCKET"
_EVERY_US: Final = "WATCHDOG_USEC"
_PID: Final = "WATCHDOG_PID"
_ABSTRACT: Final = "@"
"""What the name of a socket begins with that lies in no directory."""


class ServiceManager:
    """The service manager, or none; made once, at the start. Processes that are started later do not know of it."""

    def __init__(self) -> None:
        self._address = os.environ.pop(_SOCKET, None)
        every, pid = os.environ.pop(_EVERY_US, ""), os.environ.pop(_PID, "")
        meant = not pid or pid == str(os.getpid())
        self._every_s = int(every) / 1e6 / 2 if self._address and meant and every.isdecimal() else 0.0
        """So often it wants to hear that the event loop runs: twice in its time."""

    def ready(self, status: str) -> None:
        """The gateway serves; also after settings were read again.

        Args:
            status: What it is, in a line.
        """
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Settings are being read again; `ready` ends that."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The gateway closes."""
        self._tell("STOPPING=1")

    async def keep_alive(self) -> None:
        """Tell again and again that the event loop runs; for ever."""
        if not self._every_s:
            await anyio.sleep_forever()
        while True:
            self._tell("WATCHDOG=1")
            await anyio.sleep(self._every_s)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        name = self._address
        target = "\0" + name[1:] if name.startswith(_ABSTRACT) else name
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.connect(target)
                text = "\n".join(line.replace("\n", " ") for line in lines)
                sock.send(text.encode(errors="backslashreplace"))  # paths need not be UTF-8, and a status has to be
        except (OSError, ValueError) as error:  # the gateway serves all the same
            logger.warning("the service manager at %s cannot be told that %s: %s", name, lines[0], error)
