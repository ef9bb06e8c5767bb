"""What gateways tell beside what all brokers do: of their leases and checkpoints, and why partitions moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from kclient.admin import ConfigEntry, ConfigResource, ConfigResourceType
from kclient.errors import KafkaError
from kclient.sync import Admin

COLUMNS = ("lease age", "behind")
"""Of a table: seconds since a gateway renewed its lease, and partitions whose checkpoint says less than is stored."""
_AT_ONCE = 16
"""Brokers that are asked side by side: one that hangs holds up none of the others."""
_LEASE_AGE, _BEHIND, _GENERATIONS = "htp.lease.age.ms", "htp.checkpoints.behind", "htp.generations"


class ToldStanding(NamedTuple):
    """Of one gateway."""

    lease_age_s: float
    behind: int
    generations: str
    """Why the last ones began: `12 joined 2, 15 by hand`."""


def standings(admin: Admin, brokers: Sequence[int]) -> dict[int, ToldStanding]:
    """What some brokers tell, by their numbers; nothing of those that are no gateways, or do not answer."""
    found: dict[int, ToldStanding] = {}
    asking = ThreadPoolExecutor(max_workers=_AT_ONCE)
    try:
        asked = {asking.submit(_settings_of, admin, number): number for number in brokers}
        for each in as_completed(asked):
            entries = each.result()
            if entries is None:
                continue
            if _LEASE_AGE not in entries:
                return {}  # Kafka: the others are no gateways either
            age, behind, told = (_value(entries, name) for name in (_LEASE_AGE, _BEHIND, _GENERATIONS))
            found[asked[each]] = ToldStanding(int(age or 0) / 1000, int(behind or 0), told)
    finally:
        asking.shutdown(wait=False, cancel_futures=True)  # who is still being asked is not waited for
    return found


def _settings_of(admin: Admin, broker: int) -> Mapping[str, ConfigEntry] | None:
    """Of one broker; None if it has just ended, does not answer, or one may not ask it that."""
    resource = ConfigResource(ConfigResourceType.BROKER, str(broker))
    try:
        return admin.describe_configs([resource])[resource]
    except KafkaError:
        return None


def _value(entries: Mapping[str, ConfigEntry], name: str) -> str:
    return (entries[name].value or "") if name in entries else ""


def shown(standing: ToldStanding | None) -> dict[str, Any]:
    """The columns of a gateway; empty for one that does not answer."""
    values = (None, None) if standing is None else (round(standing.lease_age_s, 1), standing.behind)
    return dict(zip(COLUMNS, values, strict=True))


def causes(told: Mapping[int, ToldStanding]) -> dict[int, str]:
    """Why the generations began of which gateways tell, by their numbers."""
    found: dict[int, str] = {}
    for standing in told.values():
        for each in filter(None, standing.generations.split(", ")):
            number, _, cause = each.partition(" ")
            found[int(number)] = cause
    return found
