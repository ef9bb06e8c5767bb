"""Who a running gateway is, in answers and in the log."""

from __future__ import annotations

import logging
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass

from kclient.gateway.rows.broker import decode_cluster_id, encode_cluster_id
from kclient.gateway.rows.keys import CLUSTER_ID
from kclient.htp.errors import ConflictError
from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")


@dataclass(slots=True, frozen=True)
class Identity:
    """What clients are told of a gateway, the same from its start to its end."""

    node_id: int
    cluster_id: str
    leader_epoch: int
    """The number of the generation that began with this run: the leader epoch of what it has led since then."""
    run: str
    """Another one for each start of a gateway."""

    def log_fields(self) -> dict[str, object]:
        """What the log lines of this gateway carry beside their text."""
        return {"node_id": self.node_id, "cluster_id": self.cluster_id}


async def cluster_id_of(manager: Manager) -> str:
    """The id of the cluster, which is the store's: the first gateway over a store makes it.

    Raises:
        HtpError: It cannot be read or recorded.
    """
    found = (await manager.get([CLUSTER_ID])).get(CLUSTER_ID)
    if found is not None:
        try:
            return decode_cluster_id(found.value)
        except ValueError as error:
            logger.error("the cluster id is damaged, the store gets another one: %s", error)
    made = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    try:
        row = encode_cluster_id(made)
        await manager.commit({CLUSTER_ID: row}, {CLUSTER_ID: 0 if found is None else found.version})
    except ConflictError:  # another gateway over the same store was faster
        return await cluster_id_of(manager)
    return made
