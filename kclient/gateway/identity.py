"""Who a running gateway is, in answers and in the log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Identity:
    """What clients are told of a gateway, the same from its start to its end."""

    node_id: int
    cluster_id: str
    leader_epoch: int
    """The leader epoch of every unit that has none of its own: it grows with each start of a gateway on the store."""

    def log_fields(self) -> dict[str, object]:
        """What the log lines of this gateway carry beside their text."""
        return {"node_id": self.node_id, "cluster_id": self.cluster_id}
