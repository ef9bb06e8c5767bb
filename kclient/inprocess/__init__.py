"""The gateway inside the process: what `bootstrap_servers="embedded:DIR"` and `"memory:NAME"` connect to.

Nothing has to be started and no port is open. The first client that names an address starts a gateway for it in the
portal thread; all clients in the process that name it share it, whatever their event loop or thread. Another process
that names the same directory joins through a Unix socket in it, and takes over when the owner is gone.

- What is stored under `memory:NAME` lives until the process ends, or `reset` is called.
- `embedded:DIR` is closed a moment after the last client has left, or when the process exits.
"""

from __future__ import annotations

from kclient.inprocess.connecting import connect, exists
from kclient.inprocess.hosts import close_all, reset

__all__ = ["close_all", "connect", "exists", "reset"]
