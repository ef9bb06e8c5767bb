"""The two APIs of quotas: what is set, described, refused and kept."""

from __future__ import annotations

import logging
import time
from unittest.mock import ANY

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.quotas.entities import entity_of
from kclient.gateway.rows.inspection import shown_row
from kclient.gateway.rows.quotas import quota_key
from kclient.htp import open_store
from kclient.protocol import messages as m
from tests.gateway_wire import batch_of, connect, names, produce_request, running
from tests.unit.gateway.quotabox import (
    CLIENT,
    IN,
    OUT,
    TIME,
    TOPICS,
    Client,
    Names,
    alter,
    describe,
    limited,
)
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

pytestmark = pytest.mark.anyio


async def test_what_is_set_is_described() -> None:
    async with running() as (gateway, wire):
        given: list[tuple[Names, dict[str, float]]] = [
            ({"user": "a"}, {IN: 1.0, OUT: 2.0}),
            ({"user": "a", "client-id": "c"}, {TIME: 0.5}),
            ({"user": None, "client-id": None}, {TOPICS: 3.0}),
            ({"user": None}, {IN: 4.0}),
            ({"client-id": "c"}, {IN: 5.0}),
            ({"client-id": "<default>"}, {IN: 6.0}),
            ({"ip": None}, {"connection_creation_rate": 7.0}),
            ({"ip": "10.0.0.1"}, {"connection_creation_rate": 8.0}),
        ]
        for entity, quotas in given:
            assert await alter(wire, entity, validate_only=True, **quotas) == (0, None)
        assert await describe(wire) == []
        for entity, quotas in given:
            assert await alter(wire, entity, **quotas) == (0, None)
        a, both, defaults, default, c, odd, any_ip, ip = given
        assert await describe(wire) == given
        for wanted, found in (
            ([("user", 0, "a")], [a, both]),
            ([("user", 1, None)], [defaults, default]),
            ([("user", 2, None)], [a, both, defaults, default]),
            ([("client-id", 2, None)], [both, defaults, c, odd]),
            ([("client-id", 0, "<default>")], [odd]),
            ([("user", 2, None), ("client-id", 0, "c")], [both]),
            ([("ip", 2, None)], [any_ip, ip]),
            ([("ip", 0, "10.0.0.1")], [ip]),
            ([("user", 0, "nobody")], []),
        ):
            assert await describe(wire, *wanted) == found, wanted
        assert await describe(wire, ("user", 0, "a"), strict=True) == [a]
        assert await describe(wire, strict=True) == []
        assert await alter(wire, {"user": "a"}, **{IN: None, OUT: 9.0, TIME: None}) == (0, None)
        assert await describe(wire, ("user", 0, "a"), strict=True) == [({"user": "a"}, {OUT: 9.0})]
        for entity, quotas in given:
            assert await alter(wire, entity, **dict.fromkeys(quotas)) == (0, None)
        assert await describe(wire) == []
        assert gateway.parts.arrivals.default is None
        assert not gateway.parts.arrivals.limits


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ([("", 0, "a")], 42, "Invalid empty entity type."),
        ([("user", 0, "a"), ("user", 1, None)], 42, "Entity type user cannot appear more than once in the filter."),
        ([("group", 0, "a")], 35, "Unsupported entity type group"),
        ([("user", 0, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", 1, "a")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", 2, "a")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], 42, "Unknown match type 3"),
        ([("user", 2, None), ("ip", 2, None)], 42, "Invalid entity filter component combination."),
    ],
)
async def test_filters_that_are_refused(components: list[tuple[str, int, str | None]], code: int, text: str) -> None:
    async with running() as (_, wire):
        filters = [m.ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
        answer = await wire(m.DescribeClientQuotasRequest(components=filters), 1)
        assert answer.error_code == code
        assert answer.error_message.startswith(text)
        assert answer.entries is None


async def test_each_entity_has_its_own_result() -> None:
    async with running() as (_, wire):

        def entry(name: str, *ops: tuple[str, float]) -> m.AlterClientQuotasRequestEntryData:
            return m.AlterClientQuotasRequestEntryData(
                entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=name)],
                ops=[m.OpData(key=key, value=value) for key, value in ops],
            )

        entries = [
            entry("good", (IN, 1.0)), entry("wrong", ("x", 1.0)), entry("twice", (IN, 1.0)), entry("twice", (IN, 2.0)),
            entry("same", (IN, 1.0), (IN, 2.0)), entry(""),
        ]  # fmt: skip
        answer = await wire(m.AlterClientQuotasRequest(entries=entries), 1)
        assert {row.entity[0].entity_name: (row.error_code, row.error_message) for row in answer.entries} == {
            "good": (0, None),
            "wrong": (42, "Invalid configuration key x"),
            "twice": (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=twice})"),
            "same": (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=same})"),
            "": (42, "Empty user not supported"),
        }
        assert await describe(wire) == [({"user": "good"}, {IN: 1.0})]
        assert (await alter(wire, {"ip": "no.such.host.invalid"}, connection_creation_rate=1.0))[0] == 42
        assert (await alter(wire, {"ip": "no.such.host.invalid"}, connection_creation_rate=None))[0] == 0
        assert (await alter(wire, {"ip": "localhost"}, connection_creation_rate=1000.0))[0] == 0


async def test_more_than_one_request_may_change() -> None:
    async with running() as (_, wire):
        entries = [
            m.AlterClientQuotasRequestEntryData(
                entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=str(number))],
                ops=[m.OpData(key=IN, value=1.0)],
            )
            for number in range(1001)
        ]
        answer = await wire(m.AlterClientQuotasRequest(entries=entries), 1)
        assert {row.error_code for row in answer.entries} == {ErrorCode.INVALID_REQUEST}
        answer = await wire(m.AlterClientQuotasRequest(entries=entries[1:]), 1)
        assert {row.error_code for row in answer.entries} == {0}
        assert len(await describe(wire)) == 1000


def _entry(names: list[tuple[str, str]], keys: list[str]) -> m.AlterClientQuotasRequestEntryData:
    return m.AlterClientQuotasRequestEntryData(
        entity=[m.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in names],
        ops=[m.OpData(key=key, value=1.0) for key in keys],
    )


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([_entry([("user", "x")] * 17, [IN])], "an entity has 16 parts at most"),
        ([_entry([(str(number), "x") for number in range(20_000)], [IN])], "an entity has 16 parts at most"),
        (
            [_entry([("user", str(user))], [str(number) for number in range(100)]) for user in range(101)],
            "one request has 10000 quotas at most",
        ),
    ],
)
async def test_more_than_one_entity_may_consist_of(
    entries: list[m.AlterClientQuotasRequestEntryData], text: str
) -> None:
    """They took seconds of the event loop: a request may have millions."""
    async with running() as (_, wire):
        answer = await wire(m.AlterClientQuotasRequest(entries=entries), 1)
        assert {(row.error_code, row.error_message) for row in answer.entries} == {(ErrorCode.INVALID_REQUEST, text)}
        assert all(len(row.entity) <= 16 for row in answer.entries)
        assert await describe(wire) == []


@pytest.mark.slow
async def test_quotas_hold_however_many_there_are() -> None:
    """What clients have used does not have to fit beside the quotas, nor do these beside that."""
    async with limited(**{IN: 10_000}) as (gateway, client, wire):
        entries, count = gateway.parts.quotas, 0
        while not await entries.alter({entity_of({"user": f"{count}-{number}"}): {IN: 1.0} for number in range(1000)}):
            count += 1
        other = Client(gateway, "y")
        assert await alter(wire, {"client-id": None}, **{IN: 10_000}) == (ErrorCode.POLICY_VIOLATION, ANY)
        assert await alter(wire, {"user": "0-0"}, **{IN: None}) == (0, None)
        assert await alter(wire, {"client-id": None}, **{IN: 10_000}) == (0, None)
        batch = batch_of(bytes(6_000))
        for each in (client, other):
            assert (await each(produce_request("t", batch), 9)).throttle_time_ms == 0
        for each in (client, other):
            assert (await each(produce_request("t", batch), 9)).throttle_time_ms > 0
        await other.aclose()


@pytest.mark.slow
async def test_thousands_of_entities_leave_the_loop_to_others() -> None:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            begun = time.thread_time()
            await anyio.sleep(0)
            longest = max(longest, time.thread_time() - begun)

    async with running() as (gateway, _):
        entries = gateway.parts.quotas
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await anyio.sleep(0.05)
            changes = {entity_of({"user": str(number)}): {IN: 1.0} for number in range(4000)}
            longest = 0.0
            assert not await entries.alter(changes)
            assert longest < 0.03, "to change them"
            await entries.read_all()
            assert longest < 0.03, "to read them"
            tasks.cancel_scope.cancel()
        assert len(entries.quotas) == 4000


# Rows


async def test_all_gateways_of_a_store_have_the_same() -> None:
    url = f"memory:{next(names)}"
    with anyio.fail_after(30):
        async with open_store(url) as store, joined(store, 1) as (_, one), joined(store, 2) as (other, two):
            assert await alter(one, CLIENT, **{IN: 10_000.0}) == (0, None)
            assert await alter(one, {"ip": "10.0.0.1"}, connection_creation_rate=5.0) == (0, None)
            await until(lambda: describe(two), lambda found: len(found) == 2)
            assert other.parts.charged.clients.active
            assert other.parts.arrivals.limits == {"10.0.0.1": 5.0}
            assert await alter(two, CLIENT, **{OUT: 5.0, IN: None}) == (0, None)
            await until(lambda: describe(one, ("client-id", 2, None)), lambda found: found == [(CLIENT, {OUT: 5.0})])
            assert await alter(one, CLIENT, **{OUT: None}) == (0, None)
            await until(lambda: describe(two, ("client-id", 2, None)), lambda found: not found)


async def test_quotas_hold_after_a_restart_but_for_rows_that_are_damaged(caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            for user in ("a", "b"):
                assert await alter(wire, {"user": user}, **{IN: 5.0}) == (0, None)
            key = quota_key(entity_of({"user": "b"}))
            row = (await gateway.parts.manager.get([key]))[key]
            assert shown_row(key, row.value).value == {"format": 1, "quotas": {IN: "5.0"}}
            await gateway.parts.manager.commit({key: b"{}"}, {key: row.version}, lease=None)
            await wire.aclose()
        caplog.set_level(logging.ERROR)
        caplog.clear()
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await describe(wire) == [({"user": "a"}, {IN: 5.0})]
            assert "quotas that cannot be read" in caplog.text
            assert await alter(wire, {"user": "b"}, **{IN: 6.0}) == (0, None)
            assert len(await describe(wire)) == 2
            await wire.aclose()
