"""`NAME=VALUE` as people write settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from kclient.arguments import shown
from kclient.cli.errors import UsageError
from kclient.errors import BrokerConnectionError

PATIENCE_MS = 15_000
"""How long commands wait for a broker, in milliseconds; `--config` overrides it."""
_TIMEOUT = "default.api.timeout.ms"
_OF_GROUPS = frozenset(
    {
        "group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "max.poll.interval.ms",
        "partition.assignment.strategy", "session.timeout.ms",
    }
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def parse_config(given: list[str] | None, option: str = "--config") -> dict[str, str]:
    """`NAME=VALUE` pairs as a mapping.

    Raises:
        UsageError: If one has no `=`, or comes twice.
    """
    settings: dict[str, str] = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{option} takes NAME=VALUE, not {pair!r}")
        if name in settings:
            raise UsageError(f"{option} {name} is given twice")
        settings[name] = value.strip()
    return settings


def client_settings(
    bootstrap: str,
    config: list[str] | None,
    *,
    creates: bool = False,
    refused: Collection[str] = (),
    why: str = "records are read and written as JSON lines",
    options: tuple[str, str] = ("--bootstrap", "--config"),
) -> dict[str, object]:
    """The settings of a client: what the command says, then what the user gave.

    Args:
        bootstrap: The address.
        config: What the user gave.
        creates: Whether the command may make an `embedded:` directory that is not there.
        refused: Settings that are the command's own.
        why: They are.
        options: Of the address and of the settings.

    Raises:
        UsageError: The user gave a setting that is the command's own.
        BrokerConnectionError: There is no such directory.
    """
    address, own = options
    given = parse_config(config, own)
    names = {name.replace("_", ".") for name in given}
    if "bootstrap.servers" in names:
        raise UsageError(f"{address} says where the broker is, not {own} bootstrap.servers")
    for name in sorted(names.intersection(refused)):
        raise UsageError(f"{own} {name} has no place here: {why}")
    if not creates:
        check_directory(bootstrap)
    return {"bootstrap.servers": bootstrap, "client.id": "kclient-cli", **given}


def check_directory(bootstrap: str) -> None:
    """Raises `BrokerConnectionError` where the address is that of a directory that is none of a broker."""
    if "embedded:" not in bootstrap:  # it takes a while to load what knows
        return
    from kclient.inprocess import exists

    for address in bootstrap.split(","):
        if not exists(address.strip()):
            raise BrokerConnectionError(
                f"there is no broker's directory at {address.strip()}; kclient produce and topics create make one",
                retriable=False,
            )


def with_patience(settings: dict[str, object]) -> tuple[dict[str, object], object]:
    """The settings, and how long calls take at most, in milliseconds: what the user gave, or what commands wait."""
    given = given_patience(settings)
    return (settings, given) if given is not None else ({_TIMEOUT: PATIENCE_MS, **settings}, PATIENCE_MS)


def given_patience(settings: Mapping[str, object]) -> object | None:
    """How long calls may take by what the user gave, in milliseconds; None where nothing was given."""
    return next((value for name, value in settings.items() if name.replace("_", ".") == _TIMEOUT), None)


def milliseconds(time: str, option: str, otherwise: str = "") -> int:
    """A time as Kafka has it: milliseconds as they are, else ISO 8601 (UTC without a zone).

    Args:
        time: What the user gave.
        option: To which option.
        otherwise: What to give instead of a time before 1970.

    Raises:
        UsageError: It is none.
    """
    if time.isascii() and time.isdecimal() and int(time) < 1 << 63:
        return int(time)
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        raise UsageError(f"{option} is ISO 8601 or milliseconds since 1970, not {time!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment < _EPOCH:  # brokers take such numbers for other things: -1 for the end
        hint = f"; {otherwise}" if otherwise else ""
        raise UsageError(f"{option} is a time since 1970, not {time!r}{hint}")
    return round(moment.timestamp() * 1000)


def refuse_group_settings(names: Collection[str], why: str, option: str = "--config") -> None:
    """Raises `UsageError` where one of the settings is for members of groups, and there is none."""
    for name in sorted(_OF_GROUPS.intersection(names)):
        raise UsageError(f"{option} {name} is for groups: {why}")


def check_group(group: str) -> None:
    """Raises `UsageError` where no group can have the name."""
    if not group:
        raise UsageError("a group's name is empty")


def check_topic_name(topic: str) -> None:
    """Raises `UsageError` where no topic can have the name."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise UsageError(f"a topic's name is 1 to 249 ASCII letters, digits, '.', '_' or '-', not {shown(topic)}")
