"""`NAME=VALUE` as people write settings."""

from __future__ import annotations

from kclient.cli.errors import UsageError


def parse_config(given: list[str] | None, option: str = "--config") -> dict[str, str]:
    """`NAME=VALUE` pairs as a mapping.

    Raises:
        UsageError: If one has no `=`.
    """
    settings: dict[str, str] = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} takes NAME=VALUE, not {pair!r}")
        settings[name.strip()] = value.strip()
    return settings


def client_settings(bootstrap: str, config: list[str] | None) -> dict[str, object]:
    """The settings of a client: what the command says, then what the user gave."""
    return {"bootstrap.servers": bootstrap, "client.id": "kclient-cli", **parse_config(config)}
