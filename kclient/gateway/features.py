"""The features of a cluster (KIP-584): what the software can do, and the level that is in use.

A client asks ApiVersions before it relies on one, such as `transaction.version`. Which changes of a level are allowed
is decided here; `feature_levels.py` keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kclient.errors import InvalidUpdateVersionError
from kclient.protocol.messages.connection import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey

__all__ = [
    "GROUP_VERSION",
    "SHARE_VERSION",
    "STREAMS_VERSION",
    "SUPPORTED",
    "Feature",
    "FeatureChange",
    "Features",
    "LevelChange",
]

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


GROUP_VERSION: Final = "group.version"
"""Groups whose partitions the coordinator assigns (KIP-848), from level 1 on."""

SHARE_VERSION: Final = "share.version"
"""Share groups (KIP-932), from level 1 on."""

STREAMS_VERSION: Final = "streams.version"
"""Groups of Kafka Streams instances (KIP-1071), from level 1 on."""

SUPPORTED: Final = (
    Feature(GROUP_VERSION, 0, 1, 1),
    Feature(SHARE_VERSION, 0, 1, 1),
    Feature(STREAMS_VERSION, 0, 1, 1),
    Feature("transaction.version", 0, 2, 2),
)
"""The features of a gateway, with the levels that are in use until UpdateFeatures has set others."""


class LevelChange(IntEnum):
    """What the caller of UpdateFeatures is prepared for, numbered as in the protocol (`FeatureUpdate.UpgradeType`)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureChange:
    """A level that is to be in use from now on.

    Args:
        name: The feature's.
        level: The level; 0 switches it off.
        kind: A `LevelChange`, or what a client took for one.
    """

    name: str
    level: int
    kind: int


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
        self._by_name = {feature.name: feature for feature in self._features}
        self._levels = {feature.name: feature.level for feature in self._features}
        self._epoch = epoch
        if len(self._by_name) < len(self._features):
            names = [feature.name for feature in self._features]
            raise ValueError(f"two features have the same name: {names}")

    @property
    def epoch(self) -> int:
        """How often levels have changed."""
        return self._epoch

    @property
    def levels(self) -> Mapping[str, int]:
        """The levels in use, by name; 0 where a feature is off."""
        return MappingProxyType(self._levels)

    def unsupported(self, levels: Mapping[str, int]) -> dict[str, int]:
        """Those of some levels that this software cannot do."""
        return {name: level for name, level in levels.items() if not self._can(name, level)}

    def _can(self, name: str, level: int) -> bool:
        feature = self._by_name.get(name)
        if feature is None:
            return not level
        return feature.lowest <= level <= feature.highest

    def take_over(self, levels: Mapping[str, int], epoch: int) -> None:
        """Have other levels in use; those that are not named are as they were at first.

        Args:
            levels: By name. What this software does not know, or cannot do, changes nothing.
            epoch: With which that began.
        """
        self._levels = {
            feature.name: levels[feature.name]
            if feature.name in levels and self._can(feature.name, levels[feature.name])
            else feature.level
            for feature in self._features
        }
        self._epoch = epoch

    def changed(self, changes: Iterable[FeatureChange], others: Mapping[int, Mapping[str, range]]) -> dict[str, int]:
        """The levels of all features after some changes, of which all are made or none.

        Args:
            changes: They.
            others: The levels that the other live gateways can do, by their numbers and the features' names.

        Raises:
            InvalidUpdateVersionError: One cannot be, or is a downgrade that was not asked for as one.
        """
        levels = dict(self._levels)
        for change in changes:
            self._check(change, others)
            levels[change.name] = change.level
        return levels

    def _check(self, change: FeatureChange, others: Mapping[int, Mapping[str, range]]) -> None:
        """Whether a change may be made; what is wrong is looked for in Kafka's order."""
        feature, present = self._by_name.get(change.name), self._levels.get(change.name, 0)
        if change.kind not in tuple(LevelChange):
            raise _invalid(change, "The controller does not support the given upgrade type.")
        if change.level < 0:
            raise _invalid(change, "A feature version cannot be less than 0.")
        if feature is None:
            raise _invalid(change, "The gateways do not support this feature.")
        if not feature.lowest <= change.level <= feature.highest:
            raise _invalid(change, f"The gateways only support versions {feature.lowest}-{feature.highest}")
        for node_id, ranges in others.items():
            if change.name not in ranges:
                raise _invalid(
                    change,
                    f"The gateway with node.id={node_id} does not support this feature: it is of an earlier release, "
                    "upgrade it first.",
                )
            there = ranges[change.name]
            if change.level not in there:
                raise _invalid(
                    change, f"The gateway with node.id={node_id} only supports versions {there[0]}-{there[-1]}"
                )
        if change.level < present and change.kind == LevelChange.UPGRADE:
            raise _invalid(
                change,
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
                "downgrade.",
            )
        if change.level > present and change.kind != LevelChange.UPGRADE:
            raise _invalid(change, "Can't downgrade to a newer version.")

    def tell(self, response: ApiVersionsResponse, version: int) -> None:
        """Add them to an answer of this version, which leaves out what it has no place for."""
        response.supported_features = [
            SupportedFeatureKey(name=feature.name, min_version=feature.lowest, max_version=feature.highest)
            for feature in self._features
            if feature.lowest or version >= _LOWEST_OF_ANY_SINCE
        ]
        response.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self._levels.items()
            if level
        ]
        response.finalized_features_epoch = self._epoch


def _invalid(change: FeatureChange, why: str) -> InvalidUpdateVersionError:
    return InvalidUpdateVersionError(f"Invalid update version {change.level} for feature {change.name[:300]}. {why}")
