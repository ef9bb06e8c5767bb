"""The features of a cluster (KIP-584): what the software can do, and the level that is in use.

A client asks ApiVersions before it relies on one, such as `transaction.version`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kclient.protocol.messages.connection import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey

__all__ = ["Feature", "Features"]

_LOWEST_OF_ANY_SINCE = 4
"""The version of ApiVersions from which on clients can read a feature whose lowest level is 0 (KAFKA-17011)."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature.

    Args:
        name: As in Kafka.
        lowest: The lowest level that the software can do.
        highest: The highest.
        level: The level in use, the same for all of the cluster ("finalized"); 0 where it is off.
    """

    name: str
    lowest: int
    highest: int
    level: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lowest <= self.highest or self.highest < 1:
            raise ValueError(f"{self.name}: {self.lowest} to {self.highest} is not a range of levels")
        if self.level and not self.lowest <= self.level <= self.highest:
            raise ValueError(f"{self.name}: level {self.level} is not between {self.lowest} and {self.highest}")


class Features:
    """The features of a cluster.

    Args:
        features: What there is.
        epoch: Grows whenever a level in use changes, so that clients know which of two answers is newer.

    Raises:
        ValueError: Two have the same name.
    """

    def __init__(self, features: Iterable[Feature] = (), epoch: int = -1) -> None:
        self._features = tuple(sorted(features, key=lambda feature: feature.name))
        self._epoch = epoch
        names = [feature.name for feature in self._features]
        if len(set(names)) < len(names):
            raise ValueError(f"two features have the same name: {names}")

    def tell(self, response: ApiVersionsResponse, version: int) -> None:
        """Add them to an answer of this version, which leaves out what it has no place for."""
        response.supported_features = [
            SupportedFeatureKey(name=feature.name, min_version=feature.lowest, max_version=feature.highest)
            for feature in self._features
            if feature.lowest or version >= _LOWEST_OF_ANY_SINCE
        ]
        response.finalized_features = [
            FinalizedFeatureKey(name=feature.name, max_version_level=feature.level, min_version_level=feature.level)
            for feature in self._features
            if feature.level
        ]
        response.finalized_features_epoch = self._epoch
