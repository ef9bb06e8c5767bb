"""Reads all rows of a manager at once, for tests that compare them."""

from __future__ import annotations

from kclient.htp import Manager, Versioned
from kclient.htp.rows import scan_pages


async def scan_all(manager: Manager, prefix: str) -> dict[str, Versioned]:
    """All rows whose keys begin with `prefix`, sorted."""
    return {key: found async for page in scan_pages(manager, prefix) for key, found in page.items()}
