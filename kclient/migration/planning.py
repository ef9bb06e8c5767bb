"""The plan: what would be moved, what not, and what is there already; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kclient.admin import ConfigResource, ConfigResourceType
from kclient.gateway.rows.topics import TAKEN_OVER, MirrorOrigin
from kclient.gateway.settings_told import HTP_MIRROR
from kclient.migration.offsets import committed, has_offsets
from kclient.migration.others import Others, find_others, sizes
from kclient.migration.source import SourceCluster, SourceTopic
from kclient.migration.target import conflict, refused_name, refused_settings
from kclient.types import TopicPartition


@dataclass(slots=True)
class TopicPlan:
    """One topic."""

    name: str
    partitions: int
    offsets: int
    """From the log starts to the ends: as many records, or fewer."""
    size: int | None
    """Bytes, where the brokers tell them."""
    settings: dict[str, str]
    """Which it will have."""
    refused_settings: dict[str, str]
    """Which it will not have, and why."""
    there: str
    """What the store has of this name: `nothing`, `mirror`, `taken over` or `another topic`."""
    problem: str | None = None
    """Why it cannot be moved."""


@dataclass(slots=True)
class GroupPlan:
    """One group with committed offsets of these topics."""

    group_id: str
    type: str
    state: str
    offsets: int
    """Partitions that it has committed offsets of."""


@dataclass(slots=True)
class Plan:
    """What would be moved."""

    cluster_id: str
    topics: list[TopicPlan] = field(default_factory=list)
    groups: list[GroupPlan] = field(default_factory=list)
    groups_left: dict[str, str] = field(default_factory=dict)
    """Groups that are not moved, and why."""
    others: Others = field(default_factory=Others)
    """What else is not moved."""
    open_transactions: list[str] = field(default_factory=list)
    """Partitions in which transactions are open: they have to end before the cut-over."""

    @property
    def problems(self) -> list[str]:
        """Why some topics cannot be moved."""
        return [topic.problem for topic in self.topics if topic.problem is not None]

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {**asdict(self), "problems": self.problems}


async def make_plan(source: SourceCluster, target: SourceCluster | None, selects: Callable[[str], bool]) -> Plan:
    """Look at both sides.

    Args:
        source: The source.
        target: The store's gateway; None where there is no store yet.
        selects: Which topics, by name.

    Raises:
        KafkaError: A side cannot be asked.
    """
    topics = {name: topic for name, topic in (await source.topics()).items() if selects(name)}
    plan = Plan(source.snapshot.cluster_id or "")
    there = await _what_is_there(target, topics)
    settings = await source.settings(topics) if topics else {}
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
    bounds = await source.bounds(partitions)
    size = await sizes(source)
    for name, topic in topics.items():
        own = settings.get(name, {})
        refused = refused_settings(own)
        of_topic = [TopicPartition(name, number) for number in range(topic.partitions)]
        mirror = there.get(name)
        plan.topics.append(
            TopicPlan(
                name,
                topic.partitions,
                sum(bounds[tp].end - bounds[tp].start for tp in of_topic),
                sum(size.get(tp, 0) for tp in of_topic) if size else None,
                {setting: value for setting, value in own.items() if setting not in refused},
                refused,
                _there(mirror),
                refused_name(name) or _conflict(topic, mirror, plan.cluster_id),
            )
        )
    plan.open_transactions = [str(tp) for tp in partitions if bounds[tp].stable < bounds[tp].end]
    await _add_groups(source, plan, {name: topic.partitions for name, topic in topics.items()})
    plan.others = await find_others(source)
    return plan


async def _add_groups(source: SourceCluster, plan: Plan, topics: Mapping[str, int]) -> None:
    for group in await committed(source, topics):
        plan.groups.append(GroupPlan(group.group_id, group.type or "classic", group.state, len(group.offsets)))
    for listed in (await source.list_groups()).complete():
        if not has_offsets(listed):
            kind = listed.type.lower() if listed.type.lower() not in ("", "classic") else listed.protocol_type
            plan.groups_left[listed.group_id] = f"of type {kind}, which has no committed offsets of consumers"


async def _what_is_there(target: SourceCluster | None, topics: Mapping[str, SourceTopic]) -> dict[str, str]:
    """What the store has of some topics: `htp.mirror`, empty where it was made there."""
    if target is None:
        return {}
    here = await target.topics()
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics if name in here]
    described = await target.describe_configs(resources)
    return {
        resource.name: (entries[HTP_MIRROR.name].value or "") if HTP_MIRROR.name in entries else ""
        for resource, entries in described.items()
    }


def _there(mirror: str | None) -> str:
    if mirror is None:
        return "nothing"
    if not mirror:
        return "another topic"
    return "taken over" if mirror.startswith(TAKEN_OVER) else "mirror"


def _conflict(topic: SourceTopic, mirror: str | None, cluster_id: str) -> str | None:
    """Why what the store has is not the mirror of a topic."""
    if mirror is None:
        return None
    known = MirrorOrigin.of(mirror) if mirror else None
    return conflict(known, topic, cluster_id)
