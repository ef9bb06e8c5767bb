"""`kclient gateway` without the option parser, whose loading is a good part of the time that a gateway takes to start.

Only plain `--name value` and `--name=value` are understood here. For anything else (help, a wrong name, something
missing) the option parser is loaded, and says what is to be said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPTIONS = (
    "--data",
    "--listen",
    "--advertise",
    "--durability",
    "--mapping",
    "--brokers",
    "--metrics",
    "--health",
    "--config",
    "-c",
    "--log-level",
    "--log-format",
    "--processes",
    "--add-user",
    "--password-file",
)
"""Those of the command, all with a value."""
_SLOW = ("--processes", "--add-user", "--password-file")
"""They need more than one gateway's start."""


def quick_gateway(words: list[str]) -> Callable[[], int] | None:
    """What runs the gateway, if the words say so plainly; else None."""
    if words[:1] != ["gateway"]:
        return None
    found: dict[str, list[str]] = {}
    rest = iter(words[1:])
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            return None
        taken = value if equals else next(rest, None)
        if taken is None or (not equals and taken.startswith("-")):
            return None
        found.setdefault("--config" if name == "-c" else name, []).append(taken)
    if "--data" not in found or any(len(values) > 1 for name, values in found.items() if name != "--config"):
        return None
    if not found.keys().isdisjoint(_SLOW):
        return None
    if not all(value.isascii() and value.isdigit() for value in found.get("--brokers", ())):
        return None
    return lambda: _serve(found)


def _serve(found: dict[str, list[str]]) -> int:
    from kclient.cli.gateway import serve
    from kclient.cli.gateway_options import GatewayOptions, GatewaySettings
    from kclient.cli.logs import complain_in

    complain_in(found.get("--log-format", ["text"])[0])
    given: dict[str, Any] = {name.removeprefix("--").replace("-", "_"): values[0] for name, values in found.items()}
    given.pop("config", None)
    brokers = given.pop("brokers", None)
    settings = GatewaySettings(found.get("--config"))
    return serve(GatewayOptions(**given, brokers=None if brokers is None else int(brokers), settings=settings))
