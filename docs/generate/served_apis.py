"""The APIs that a gateway serves beside those of Kafka's brokers, in Markdown.

`python docs/generate/served_apis.py > docs/reference/served-apis.md` writes it. The tables hold what differs: an API
that is in none of them is served from the oldest version of Kafka 3.9.1 to the newest of 4.3.1.
`tests/integration/test_served_apis.py` compares them with what real brokers tell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import anyio

from kclient.gateway import Gateway
from kclient.protocol.registry import ApiKey

__all__ = ["LEFT_OUT", "OTHER_VERSIONS", "SOMETIMES", "render", "served"]

_SHARES: Final = "Between brokers, to who keeps the states of share groups: here the store does."
_VOTERS: Final = "There is no quorum of controllers: what gateways agree on lies in the store."

LEFT_OUT: Final[Mapping[ApiKey, str]] = {
    ApiKey.DESCRIBE_QUORUM: f"{_VOTERS} Voters and lags that are made up would only set off alarms, or keep them "
    "silent. `kclient cluster status` tells which gateways serve a store.",
    ApiKey.UNREGISTER_BROKER: "A gateway that does not renew its lease is taken off the list by the others.",
    ApiKey.ADD_RAFT_VOTER: _VOTERS,
    ApiKey.REMOVE_RAFT_VOTER: _VOTERS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARES,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARES,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARES,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARES,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARES,
}
"""What a client sees at a broker, and not at a gateway."""

SOMETIMES: Final[Mapping[ApiKey, str]] = {
    ApiKey.SASL_HANDSHAKE: "On listeners where clients log in; Kafka tells of it on all, and refuses it on the others.",
    ApiKey.SASL_AUTHENTICATE: "The same.",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "While the gateway serves metrics (`--metrics`), where they can be read; Kafka "
    "tells of it where a plugin of `metric.reporters` receives them.",
    ApiKey.PUSH_TELEMETRY: "The same.",
}
"""What depends on how the gateway is set up."""

OTHER_VERSIONS: Final[Mapping[ApiKey, str]] = {}
"""APIs whose versions are others than from the oldest of Kafka 3.9.1 to the newest of 4.3.1, and why."""

_START = """\
# Served APIs

What a gateway serves, as clients are told by ApiVersions: from the oldest versions of Kafka 3.9.1, where that has the
API, to the newest of Kafka 4.3.1. A test compares it with real brokers; what differs is here, with its reason.
"""
_NOT = """\
## Left out

Brokers serve these to clients of their listeners, and gateways do not. To use one ends with the error that the client
has for brokers which are too old. What brokers and controllers serve to each other alone is not in the list that
clients get, and not here either.

| API | | why |
|---|---|---|"""
_DEPENDS = """\
## Told on some gateways

| API | | when |
|---|---|---|"""
_SERVED = """\
## Served

| API | | versions |
|---|---|---|"""
_OTHERS = """\
## Other versions

| API | | why |
|---|---|---|"""


def served() -> dict[ApiKey, tuple[int, int]]:
    """The oldest and newest version of each API that a gateway has a handler for, by API."""

    async def ask() -> dict[ApiKey, tuple[int, int]]:
        async with Gateway("memory:served-apis", listen=None) as gateway:
            return {ApiKey(key): versions for key, versions in sorted(gateway.parts.table.versions.items())}

    return anyio.run(ask)


def render() -> str:
    """The whole page."""
    parts = [_START, _SERVED]
    for key, (low, high) in served().items():
        if key not in SOMETIMES:
            parts.append(_row(key, f"{low} to {high}" if low < high else f"{low}"))
    for head, rows in ((_DEPENDS, SOMETIMES), (_OTHERS, OTHER_VERSIONS), (_NOT, LEFT_OUT)):
        if rows:
            parts += ["", head, *(_row(key, why) for key, why in rows.items())]
    return "\n".join([*parts, ""])


def _row(key: ApiKey, text: str) -> str:
    return f"| {key.message_name} | {int(key)} | {text} |"


if __name__ == "__main__":
    sys.stdout.write(render())
