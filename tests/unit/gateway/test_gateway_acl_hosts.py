"""Access control lists and where clients come from: connections that end as soon as they have begun."""

from __future__ import annotations

import socket
import struct

import anyio
import pytest

from kclient.acls import AclOperation
from kclient.gateway import Gateway
from kclient.gateway.security.audit import logger as audit
from kclient.protocol import messages as m
from kclient.protocol.framing import encode_request
from tests.gateway_wire import names
from tests.unit.gateway.test_gateway_acls import GUARDED, create, entry, users

pytestmark = pytest.mark.anyio

RESET = struct.pack("ii", 1, 0)
"""With this SO_LINGER closing a socket resets its connection."""


async def test_who_resets_the_connection_is_where_it_came_from(caplog: pytest.LogCaptureFixture) -> None:
    """Its request is read all the same, and must not pass for one from this machine."""
    caplog.set_level("INFO", logger=audit.name)
    async with (
        Gateway(f"memory:{next(names)}", listen="127.0.0.1:0", config=GUARDED) as gateway,
        users(gateway, "root") as (root,),
    ):
        await root.create("a")
        assert await create(root, entry("*", AclOperation.ALL, "User:ANONYMOUS", host="127.0.0.1")) == [(0, "")]
        host, _, port = gateway.bootstrap.rpartition(":")
        request = m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name="a")], timeout_ms=1000)
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.2", 0))
            stranger.connect((host, int(port)))
            stranger.sendall(b"".join(encode_request(request, 6, 1, "test")))
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        while not (told := [line for line in caplog.messages if "operation = DELETE" in line]):
            await anyio.sleep(0.01)
        assert "is Denied operation = DELETE from host = 127.0.0.2 on resource = TOPIC:LITERAL:a" in told[0]
        assert (await root.metadata("a")).topics[0].error_code == 0
