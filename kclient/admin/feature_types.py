"""What the admin client's calls about the features of a cluster take and give (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from kclient.arguments import shown
from kclient.records.bounds import INT16_MAX

_CHARACTERS = 249


class UpgradeType(IntEnum):
    """What a change of a feature's level may be, as the protocol numbers it."""

    UPGRADE = 1
    """Only to a higher level."""
    SAFE_DOWNGRADE = 2
    """Only to a lower level, and only where nothing is lost by that."""
    UNSAFE_DOWNGRADE = 3
    """To a lower level, whatever is lost."""


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The level that a feature is to have.

    Attributes:
        max_version_level: the level, at most 32767; 0 switches the feature off, and is never an upgrade.
        upgrade_type: what the change may be; anything else is refused.

    Raises:
        TypeError: the level is no number, or the type no `UpgradeType`.
        ValueError: the level cannot be.
    """

    max_version_level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE

    def __post_init__(self) -> None:
        level = self.max_version_level
        if isinstance(level, bool) or not isinstance(level, int):
            raise TypeError(f"the level of a feature is a number, not {shown(level)}")
        if not 0 <= level <= INT16_MAX:
            raise ValueError(f"the level of a feature is 0 to {INT16_MAX}, not {shown(level)}")
        if not isinstance(self.upgrade_type, UpgradeType):
            raise TypeError(f"upgrade_type is an UpgradeType, not {shown(self.upgrade_type)}")
        if not level and self.upgrade_type is UpgradeType.UPGRADE:
            raise ValueError("level 0 switches a feature off: upgrade_type is SAFE_DOWNGRADE or UNSAFE_DOWNGRADE then")


class SupportedVersionRange(NamedTuple):
    """The levels of a feature that a broker can do, both included."""

    min_version: int
    max_version: int


class FinalizedVersionRange(NamedTuple):
    """The levels of a feature that are in use in a cluster; with KRaft both are the same."""

    min_version_level: int
    max_version_level: int


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """The features of a cluster.

    Attributes:
        finalized_features: the levels in use, by name; a feature that is off is not in it.
        finalized_features_epoch: grows when they change; None where the broker does not know them.
        supported_features: the levels that the broker can do, by name.
    """

    finalized_features: Mapping[str, FinalizedVersionRange]
    finalized_features_epoch: int | None
    supported_features: Mapping[str, SupportedVersionRange]


def as_feature_updates(updates: object) -> dict[str, FeatureUpdate]:
    """Levels by the features' names.

    Raises:
        TypeError: these are not.
        ValueError: there are none, or a name that cannot be one.
    """
    if not isinstance(updates, Mapping):
        raise TypeError(f"the updates are FeatureUpdates by the names of features, not {shown(updates)}")
    if not updates:
        raise ValueError("there are no features to update")
    for name, update in updates.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a feature is text, not {shown(name)}")
        if not name or len(name) > _CHARACTERS or not name.isascii():
            raise ValueError(f"{shown(name)} is not the name of a feature")
        if not isinstance(update, FeatureUpdate):
            raise TypeError(f"the update of {name} is a FeatureUpdate, not {shown(update)}")
    return dict(updates)
