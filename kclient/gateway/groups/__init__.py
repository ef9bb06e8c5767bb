"""Consumer groups: the state machine of a group, committed offsets, and the coordinator that runs them.

`ClassicGroup` decides; `GroupCoordinator` puts together who waits and stores. See `docs/internals/groups.md`.
"""

from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.coordinator import GroupCoordinator, group_settings
from kclient.gateway.groups.events import GroupSettings
from kclient.gateway.groups.states import GroupState

__all__ = ["ClassicGroup", "GroupCoordinator", "GroupSettings", "GroupState", "group_settings"]
