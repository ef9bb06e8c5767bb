"""A simulated vendor's HTP, to try against what a store may do: `simulated:NAME?brokers=3&seed=7`.

It can as little as the port allows (`kclient.htp.port`), and does what happens in networks: answers come out of order,
late, or never; a message that was given up may be stored after that; what is told of topics is seconds old; a topic
that was deleted and made again still has its namesake's messages, until its broker hears of the deletion. No epoch
keeps an old leader from sending. Only the values and leases of its manager are consistent.

Everything is in memory, belongs to one event loop at a time, and goes by its clock, so that it runs in virtual time.
What is left to chance is decided by a seed. All in the process that use one name share an installation, until `reset`.

- `SimulatedOptions`: how an installation behaves; its fields are the parameters of the address.
- `open_simulated`: what `kclient.htp.open_store` calls; the first who opens a name says how it behaves.
- `Installation`, `SendFate`: what a test looks at and plans (`SimulatedStore.installation`).
- `reset`: forget an installation.
"""

from __future__ import annotations

from kclient.htp.testing.broker import SimulatedBroker as SimulatedBroker
from kclient.htp.testing.installation import Installation as Installation
from kclient.htp.testing.installation import SendFate as SendFate
from kclient.htp.testing.manager import SimulatedManager as SimulatedManager
from kclient.htp.testing.options import SimulatedOptions as SimulatedOptions
from kclient.htp.testing.store import SimulatedStore as SimulatedStore
from kclient.htp.testing.store import open_simulated as open_simulated
from kclient.htp.testing.store import reset as reset

__all__ = [
    "Installation",
    "SendFate",
    "SimulatedBroker",
    "SimulatedManager",
    "SimulatedOptions",
    "SimulatedStore",
    "open_simulated",
    "reset",
]
