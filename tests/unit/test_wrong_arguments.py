"""Arguments of a wrong type or form, and what the clients say to them."""

from __future__ import annotations

from typing import Any

import pytest

import kclient
import kclient.sync
from kclient.admin import NewTopic
from kclient.errors import ConfigError
from kclient.testing import memory_broker

CLIENTS = [
    kclient.Admin,
    kclient.Consumer,
    kclient.Producer,
    kclient.sync.Admin,
    kclient.sync.Consumer,
    kclient.sync.Producer,
]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.__module__}.{client.__name__}")
@pytest.mark.parametrize("address", ["a:99999", "a:x", "http://x", "cloud:x", "a:1,b:-1", "[::1"])
def test_an_address_that_cannot_be_is_refused_by_the_constructor(client: Any, address: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: the address "):
        client(bootstrap_servers=address)


@pytest.mark.anyio
@pytest.mark.parametrize("topics", [{"q": 1}, ["q"], "q", NewTopic("q"), 7, [NewTopic("q"), None]], ids=repr)
async def test_topics_that_are_none(topics: Any) -> None:
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            with pytest.raises(TypeError, match="create_topics takes NewTopic objects"):
                await admin.create_topics(topics)
            assert await admin.list_topics() == []


HEADERS = [{"a": b"1"}, {"ab": b"1"}, {"abc": b"1"}, ["a"], ["ab"], "ab", b"ab", 5, [("a", b"1", 2)], [(b"a", b"1")]]


@pytest.mark.anyio
@pytest.mark.parametrize("headers", HEADERS, ids=repr)
async def test_headers_that_are_none(headers: Any) -> None:
    with memory_broker() as address:
        async with kclient.Producer(bootstrap_servers=address, linger_ms=10_000) as producer:
            for _ in range(2):  # without an open batch, and with one
                with pytest.raises(TypeError, match="headers are a sequence of pairs of str and bytes"):
                    await producer.send("t", b"v", headers=headers)
                await producer.send("t", b"v", headers=[("a", b"1")])
            await producer.flush()
            assert producer.metrics()["record-send-total"] == 2


@pytest.mark.parametrize("headers", HEADERS, ids=repr)
def test_headers_that_are_none_in_blocking_code(headers: Any) -> None:
    with (
        memory_broker() as address,
        kclient.sync.Producer(bootstrap_servers=address, linger_ms=10_000) as producer,
    ):
        for _ in range(2):
            with pytest.raises(TypeError, match="headers are a sequence of pairs of str and bytes"):
                producer.send("t", b"v", headers=headers)
            producer.send("t", b"v", headers=[("a", b"1")])
        producer.flush()
        assert producer.metrics()["record-send-total"] == 2
