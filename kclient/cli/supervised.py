"""What ties a gateway to the `kclient gateway --processes N` that has started it, if one has.

Over a socket that both have, the gateway says once a second that its event loop runs; it ends in order, as after
SIGTERM, once the other side is closed: so none goes on when what watches it was killed.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

import anyio

VARIABLE: Final = "KCLIENT_GATEWAY_SUPERVISOR"
"""Of the environment: the descriptor of the socket."""
_BEAT_S: Final = 1.0


class Tie:
    """The gateway's end; made once, at the start."""

    def __init__(self) -> None:
        told = os.environ.pop(VARIABLE, None)
        self._socket: socket.socket | None = None
        if told is not None:
            self._socket = socket.socket(fileno=int(told))
            self._socket.setblocking(False)
            self._socket.set_inheritable(False)

    async def hold(self) -> None:
        """Until the other side is closed; for ever where there is none."""
        if self._socket is None:
            await anyio.sleep_forever()
            return
        while True:
            try:
                self._socket.send(b".")
            except BlockingIOError:  # it does not read, and will
                pass
            except OSError:
                return
            with suppress(BlockingIOError):
                if not self._socket.recv(1):
                    return
            await anyio.sleep(_BEAT_S)
