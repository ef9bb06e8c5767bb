"""Which runs of gateways live, as the store says it at this moment."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kclient.gateway.membership.members import leases_by_number
from kclient.gateway.rows.gateways import GatewayRow
from kclient.gateway.rows.keys import GATEWAYS
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.htp.port import Manager


async def living_runs(manager: Manager) -> set[str]:
    """The runs of gateways that are registered and have their leases, or may have them.

    Raises:
        HtpError: The store failed.
    """
    found = set()
    leases = leases_by_number(await manager.leases(GATEWAYS))
    async for page in scan_pages(manager, GATEWAYS):
        for row in page.values():
            with suppress(ValueError):
                gateway = GatewayRow.decode(row.value)
                lease = leases.get(gateway.node_id)
                if lease is not None and lease.held and lease.epoch == gateway.epoch:
                    found.add(gateway.run)
    return found
