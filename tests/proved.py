"""Which versions of which APIs made a checked round trip, counted over all processes of a run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

import pytest

from kclient.protocol.registry import ApiKey

Proved: TypeAlias = dict[str, set[tuple[ApiKey, int]]]
_PROVED = pytest.StashKey[Proved]()
_KEY = "proved"


def proved_of(config: pytest.Config) -> Proved:
    """What this process has proved, by the name of the server."""
    return config.stash.setdefault(_PROVED, defaultdict(set))


def hand_in(config: pytest.Config) -> None:
    """At the end of a process that another one has started: give it what was proved."""
    told: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if told is not None:
        told[_KEY] = {
            name: [(int(api), version) for api, version in found] for name, found in proved_of(config).items()
        }


def collect(config: pytest.Config, told: dict[str, Any]) -> None:
    """Count what one of the processes has given."""
    for name, versions in told.get(_KEY, {}).items():
        proved_of(config)[name] |= {(ApiKey(api), version) for api, version in versions}


def summary(config: pytest.Config) -> list[str]:
    """One line a server: how many protocol versions were proved with it."""
    return [
        f"{name}: {len(versions)} versions of {len({api for api, _ in versions})} APIs made a checked round trip"
        for name, versions in sorted(proved_of(config).items())
    ]
