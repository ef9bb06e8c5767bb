"""Gateways that keep new topics in HTP in another way than the usual one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import kclient.gateway.gateway
import kclient.htp.embedded
import kclient.htp.memory
from kclient.gateway.mapping import Mapping, mapping_for
from kclient.htp.brokers import MOST_BROKERS, brokers_asked_for

EMBEDDED_BROKERS = 32
"""So many has embedded HTP where each is a partition, and nobody says how many: threads and directories take time."""


def have_topics_lie(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, mapping: str) -> None:
    """Have every gateway that is not told otherwise use this mapping, over stores that have brokers for it.

    Tests are skipped that it is not for. Those marked `domains` are about the usual one; `many_partitions` are more
    than there may be brokers; `own_places` are about partitions that share no topic of HTP.
    """
    if request.node.get_closest_marker("domains"):
        pytest.skip("is about the mapping domain")
    if mapping == "broker" and request.node.get_closest_marker("many_partitions"):
        pytest.skip("there are not so many brokers")
    if mapping == "virtual" and request.node.get_closest_marker("own_places"):
        pytest.skip("is about partitions that have places of their own")

    def given(name: str) -> Mapping:
        return mapping_for(mapping if name == "domain" else name)

    monkeypatch.setattr(kclient.gateway.gateway, "mapping_for", given)
    if mapping == "broker":
        monkeypatch.setattr(kclient.htp.memory, "brokers_asked_for", _unless_told(MOST_BROKERS))
        monkeypatch.setattr(kclient.htp.embedded, "brokers_asked_for", _unless_told(EMBEDDED_BROKERS))


def _unless_told(number: int) -> Callable[[str, int | None], tuple[str, int | None]]:
    def asked_for(rest: str, brokers: int | None = None) -> tuple[str, int | None]:
        rest, told = brokers_asked_for(rest, brokers)
        return rest, number if told is None else told

    return asked_for
