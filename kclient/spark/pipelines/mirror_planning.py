"""What a mirror is to do: which topics of a cluster go where, under which names and how fast. It asks no broker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kclient.arguments import as_count, as_names, check_topic, shown
from kclient.errors import ConfigError
from kclient.spark.options import ReadOptions, parse_read_options
from kclient.spark.pipelines.rate_limiter import Rate
from kclient.spark.pipelines.replay_planning import rate_of, renamed
from kclient.spark.pipelines.replay_records import fingerprint_of
from kclient.spark.pipelines.settings import as_flag, text_settings

_OWN = frozenset({"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"})


@dataclass(frozen=True)
class MirrorSelection:
    """What is mirrored, to where, and how; checked.

    Attributes:
        options: how topics are read, and which.
        rename: the target of a source topic.
        prefix: what the targets of others begin with.
        copy_settings: whether targets that are made get the settings of their sources.
        restart_recreated: whether a topic that was created again is begun anew.
        groups: which groups' offsets are translated; None for none.
        max_offsets: how many offsets a run takes; None for all.
        rate: the most of a second.
    """

    options: ReadOptions
    rename: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    copy_settings: bool = True
    restart_recreated: bool = False
    groups: re.Pattern[str] | None = None
    max_offsets: int | None = None
    rate: Rate = field(default_factory=Rate)

    def target_of(self, topic: str) -> str:
        """Where a source topic's records go to."""
        return self.rename.get(topic, f"{self.prefix}{topic}")

    def fingerprint(self, topic: str) -> str:
        """Of what is mirrored of a topic: a mirror that goes on has the same."""
        return fingerprint_of({"target": self.target_of(topic)})

    def default_id(self, cluster_id: str) -> str:
        """The id of a mirror that was given none: the same for the same source and prefix, whatever topics it has."""
        return f"mirror-{fingerprint_of({'cluster': cluster_id, 'prefix': self.prefix})}"


def checked_mirror(
    source: Mapping[str, Any],
    *,
    topics: Sequence[str],
    pattern: str | None,
    rename: Mapping[str, str] | None,
    prefix: str,
    copy_settings: bool,
    fail_on_data_loss: bool,
    restart_recreated: bool,
    groups: str | None,
    max_offsets: int | None,
    records_per_second: float | None,
    bytes_per_second: float | None,
) -> MirrorSelection:
    """The selection that arguments describe.

    Raises:
        ConfigError: one of them is wrong, or two do not go together.
        TypeError, ValueError: `max_offsets` is no number from 1 on.
    """
    names = tuple(dict.fromkeys(as_names(topics, "topics of a mirror", empty=True)))
    targets = renamed(rename)
    if not isinstance(prefix, str):
        raise ConfigError(f"a prefix is text, not {shown(prefix)}")
    for name in (*names, *targets, *targets.values()):
        check_topic(name)
    if bool(names) == (pattern is not None):
        raise ConfigError("mirror takes either topics or a pattern")
    unused = sorted(set(targets) - set(names)) if names else []
    if unused:
        raise ConfigError(f"rename names topics that are not mirrored: {', '.join(unused)}")
    goals: dict[str, str] = {}
    for name in names:
        goal = targets.get(name, f"{prefix}{name}")
        check_goal(goal)
        if goal in goals:
            raise ConfigError(f"{goals[goal]} and {name} would both go to {goal}: a target has one source")
        goals[goal] = name
    fail_on_data_loss = as_flag(fail_on_data_loss, "fail_on_data_loss")
    return MirrorSelection(
        _options(source, names, pattern, fail_on_data_loss=fail_on_data_loss), targets, prefix,
        as_flag(copy_settings, "copy_settings"), as_flag(restart_recreated, "restart_recreated"), _groups(groups),
        as_count(max_offsets, "max_offsets"),
        Rate(rate_of(records_per_second, "records_per_second"), rate_of(bytes_per_second, "bytes_per_second")),
    )  # fmt: skip


def check_goal(target: str) -> None:
    """Raises `ConfigError` where no records can go to a topic of the name."""
    check_topic(target)
    if target in _OWN:
        raise ConfigError(f"{target} is Kafka's own, and nobody writes to it but brokers: give it another name")


def _options(
    source: Mapping[str, Any], names: Sequence[str], pattern: str | None, *, fail_on_data_loss: bool
) -> ReadOptions:
    given = text_settings(source, "a mirror's source")
    level = given.get("isolation.level", "read_committed")
    if level != "read_committed":
        raise ConfigError("a mirror reads what is committed: isolation.level of its source is read_committed")
    selected = {"subscribePattern": pattern} if pattern is not None else {"subscribe": ",".join(names)}
    options = {f"kafka.{name}": value for name, value in {**given, "isolation.level": level}.items()}
    parsed = parse_read_options({**options, **selected})
    return replace(
        parsed,
        selection=replace(parsed.selection, whole_names=True),
        columns=("key", "value", "headers", "offset", "timestamp"),
        fail_on_data_loss=fail_on_data_loss,
        lenience="--allow-data-loss (fail_on_data_loss=False)",
    )


def _groups(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    what = f"groups is a regular expression of whole group ids, not {shown(pattern)}"
    if not isinstance(pattern, str):
        raise ConfigError(what)
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{what}: {error}") from None
