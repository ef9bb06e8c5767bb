"""Moving in from Kafka: topics and committed offsets of a cluster, into the store of a gateway.

Offsets stay what they are, so clients change only their address. What `kclient migrate` does is in here; how, and in
which order, is in docs/guide/migrating.md.
"""

from __future__ import annotations

from kclient.migration.errors import MigrationError
from kclient.migration.mirror import Mirror
from kclient.migration.source import SourceCluster
from kclient.migration.target import Target
from kclient.migration.throttle import Throttle

__all__ = ["MigrationError", "Mirror", "SourceCluster", "Target", "Throttle"]
