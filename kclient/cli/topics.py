"""`kclient topics`: list, create, delete, describe, alter."""

from __future__ import annotations

from kclient.admin import ConfigResource, ConfigResourceType
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.sync import Admin


def list_topics(settings: dict[str, object], *, internal: bool) -> int:
    """Print the names; on a terminal also how many partitions."""
    with Admin(settings) as admin:
        names = [topic.name for topic in admin.list_topics(include_internal=internal)]
        if not output.is_terminal():
            output.table(["topic"], [(name,) for name in names])
            return 0
        described = admin.describe_topics(names) if names else {}
        output.table(["topic", "partitions"], [(name, len(described[name].partitions)) for name in names])
    return 0


def create(
    name: str, settings: dict[str, object], *, partitions: int, replication_factor: int, configs: dict[str, str]
) -> int:
    """Create one topic."""
    with Admin(settings) as admin:
        admin.create_topic(name, partitions, replication_factor, dict(configs))
    output.note(f"topic {name} was created")
    return 0


def delete(names: list[str], settings: dict[str, object]) -> int:
    """Delete topics and everything in them."""
    names = list(dict.fromkeys(names))
    with Admin(settings) as admin:
        admin.delete_topics(names)
    output.note(f"deleted: {', '.join(names)}")
    return 0


def describe(names: list[str], settings: dict[str, object]) -> int:
    """Print partitions, the settings that somebody made, and how they lie in HTP."""
    names = list(dict.fromkeys(names))
    with Admin(settings) as admin:
        described = admin.describe_topics(names)
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        configs = admin.describe_configs(resources)
        rows = [
            (
                name,
                info.partition,
                None if info.leader is None else info.leader.id,
                " ".join(str(node.id) for node in info.replicas),
                " ".join(str(node.id) for node in info.in_sync_replicas),
            )
            for name in names
            for info in sorted(described[name].partitions, key=lambda info: info.partition)
        ]
        output.table(["topic", "partition", "leader", "replicas", "in sync"], rows)
        settings_rows = [
            (resource.name, entry.name, entry.value)
            for resource, entries in configs.items()
            for entry in entries.values()
            if entry.source.name == "DYNAMIC_TOPIC_CONFIG" or entry.name in ("htp.mapping", "htp.mirror")
        ]
        if settings_rows:
            output.line("")
            output.table(["topic", "setting", "value"], settings_rows)
    return 0


def alter(
    name: str,
    settings: dict[str, object],
    *,
    partitions: int | None,
    configs: dict[str, str],
    unset: list[str],
) -> int:
    """Give a topic more partitions, or other settings."""
    if partitions is None and not configs and not unset:
        raise UsageError("nothing to change: give --partitions, --set or --unset")
    both = sorted(configs.keys() & set(unset))
    if both:
        raise UsageError(f"{both[0]} is given to --set and to --unset")
    with Admin(settings) as admin:
        if partitions is not None:  # all or nothing: settings are changed only if the partitions will be
            admin.create_partitions({name: partitions}, validate_only=True)
        if configs or unset:
            changes: dict[str, str | None] = {**configs, **dict.fromkeys(unset)}
            admin.alter_configs({ConfigResource(ConfigResourceType.TOPIC, name): changes})
        if partitions is not None:
            admin.create_partitions({name: partitions})
    output.note(f"topic {name} was changed")
    return 0
