"""The generations of a gateway that is alone on a store, and who writes rows of units then; no row tells of them."""

from __future__ import annotations

from kclient.gateway.assignment import Generation, Generations
from kclient.gateway.cluster_generations import ClusterGenerations
from kclient.gateway.fenced_writer import FencedWriter
from kclient.gateway.ownership import HeldLease
from kclient.htp.port import Manager


def alone(manager: Manager, number: int = 1) -> ClusterGenerations:
    """The only one, of gateway 1."""
    return ClusterGenerations(manager, 1, 1, Generations([Generation(number, {1: 1})]), 0)


def sole_writer(manager: Manager, lease: HeldLease) -> FencedWriter:
    """Writes whatever unit's rows."""
    return FencedWriter(manager, lease, alone(manager))
