"""`kclient configs`: settings of topics, brokers, loggers, groups and client metrics, shown, set and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kclient.admin import ConfigEntry, ConfigResource, ConfigResourceType, ConfigSource
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.settings import parse_config
from kclient.cli.sheets import Sheet, sheet_of
from kclient.sync import Admin

_OPTIONS = {
    "topic": ConfigResourceType.TOPIC,
    "broker": ConfigResourceType.BROKER,
    "broker_logger": ConfigResourceType.BROKER_LOGGER,
    "group": ConfigResourceType.GROUP,
    "client_metrics": ConfigResourceType.CLIENT_METRICS,
}
_TYPES = {each.name.lower().replace("_", "-"): each for each in ConfigResourceType if each}


@dataclass(frozen=True)
class SettingsOwner:
    """Whose settings, as options name it: one of these.

    Attributes:
        topic: a topic's name.
        broker: a broker's id.
        broker_defaults: whether those are meant that all brokers go by unless they have their own.
        broker_logger: the id of a broker, whose loggers are meant.
        group: a group's name.
        client_metrics: the name of a subscription to metrics.
    """

    topic: str | None = None
    broker: int | None = None
    broker_defaults: bool = False
    broker_logger: int | None = None
    group: str | None = None
    client_metrics: str | None = None

    def resource(self) -> ConfigResource:
        """The one that is meant.

        Raises:
            UsageError: None is named, or several are.
        """
        found = [
            ConfigResource(kind, str(getattr(self, attribute)))
            for attribute, kind in _OPTIONS.items()
            if getattr(self, attribute) is not None
        ]
        if self.broker_defaults:
            found.append(ConfigResource(ConfigResourceType.BROKER, ""))
        if len(found) != 1:
            raise UsageError(
                "say whose settings, by one of --topic, --broker, --broker-defaults, --broker-logger, --group and"
                " --client-metrics"
            )
        if not found[0].name and not self.broker_defaults:
            raise UsageError(f"the name of a {_kind(found[0].type)} is not empty")
        return found[0]


def described(
    admin: Admin, resource: ConfigResource, names: Sequence[str], *, every: bool, synonyms: bool, documentation: bool
) -> Sheet:
    """The settings that somebody made, or every one, or those named."""
    entries = admin.describe_configs(
        [resource], names=list(names) or None, include_synonyms=synonyms, include_documentation=documentation
    )[resource]
    missing = [name for name in names if name not in entries]
    if missing:
        raise UsageError(f"{_told(resource)} has no setting {missing[0]!r}")
    shown = [entry for entry in entries.values() if names or every or _is_made(resource, entry)]
    rows = [
        _row(entry, synonyms=synonyms, documentation=documentation) for entry in sorted(shown, key=lambda e: e.name)
    ]
    columns = ["name", "value", "source", "type", "read_only"]
    columns += ["synonyms"] * synonyms + ["documentation"] * documentation
    return sheet_of(f"{_told(resource)}: {len(rows)} settings", columns, rows, "settings")


def _is_made(resource: ConfigResource, entry: ConfigEntry) -> bool:
    """Whether somebody gave it this value, to this resource; of the static ones of brokers that is their file."""
    if entry.source in (ConfigSource.DEFAULT_CONFIG, ConfigSource.UNKNOWN):
        return False
    inherited = (ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    return resource.type is ConfigResourceType.BROKER or entry.source not in (
        *inherited,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
    )


def _row(entry: ConfigEntry, *, synonyms: bool, documentation: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "type": entry.type.name,
        "read_only": entry.is_read_only,
    }
    if synonyms:
        row["synonyms"] = [f"{each.source.name}:{each.name}={each.value}" for each in entry.synonyms]
    if documentation:
        row["documentation"] = entry.documentation
    return row


def put(resource: ConfigResource, texts: list[str], settings: dict[str, object], *, dry_run: bool) -> int:
    """Set settings (`NAME=VALUE`)."""
    values = parse_config(texts, f"configs set --{_kind(resource.type)}")
    return _alter(resource, values, settings, f"{', '.join(values)} set", dry_run=dry_run)


def remove(resource: ConfigResource, names: Sequence[str], settings: dict[str, object], *, dry_run: bool) -> int:
    """Return settings to their defaults."""
    return _alter(resource, dict.fromkeys(names), settings, f"{', '.join(names)} removed", dry_run=dry_run)


def _alter(
    resource: ConfigResource,
    changes: Mapping[str, str | None],
    settings: dict[str, object],
    done: str,
    *,
    dry_run: bool,
) -> int:
    with Admin(settings) as admin:
        admin.alter_configs({resource: dict(changes)}, validate_only=dry_run)
    if dry_run:
        output.warn("nothing was changed: this is a dry run")
    else:
        output.note(f"{_told(resource)}: {done}")
    return 0


def as_types(names: Sequence[str]) -> list[ConfigResourceType] | None:
    """Kinds of resources by the names that options have for them; None for all.

    Raises:
        UsageError: There is no such kind.
    """
    for name in names:
        if name not in _TYPES:
            raise UsageError(f"--type is one of {', '.join(_TYPES)}, not {name!r}")
    return [_TYPES[name] for name in names] or None


def listed(admin: Admin, types: list[ConfigResourceType] | None) -> Sheet:
    """What has settings."""
    rows = [{"type": _kind(each.type), "name": each.name} for each in admin.list_config_resources(types)]
    return sheet_of(f"{len(rows)} resources", ["type", "name"], rows, "resources")


def _kind(kind: ConfigResourceType) -> str:
    return kind.name.lower().replace("_", "-")


def _told(resource: ConfigResource) -> str:
    return f"{_kind(resource.type)} {resource.name}" if resource.name else "defaults of all brokers"
