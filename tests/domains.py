"""Asks a manager which domains there are, of those that a test knows."""

from __future__ import annotations

from collections.abc import Iterable

from kclient.htp import Manager, UnknownDomainError


async def domains_among(manager: Manager, names: Iterable[str]) -> list[str]:
    """Those of the names that stand for a domain."""
    found = []
    for name in names:
        try:
            await manager.list_topics(name)
        except UnknownDomainError:
            continue
        found.append(name)
    return found
