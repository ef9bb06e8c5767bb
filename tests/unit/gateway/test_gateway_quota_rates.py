"""Rates and buckets of tokens in simulated time, and which quota holds for whom."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.errors import InvalidRequestError
from kclient.gateway.quotas import addresses
from kclient.gateway.quotas.addresses import AddressLimits
from kclient.gateway.quotas.arrivals import Arrivals
from kclient.gateway.quotas.charges import Throttles
from kclient.gateway.quotas.clients import ClientQuotas
from kclient.gateway.quotas.entities import Entity, check_value, entity_of
from kclient.gateway.quotas.rates import LONGEST_MS, RateWindow, TokenBucket, WindowedRate
from kclient.gateway.rows.quotas import decode_quotas, encode_quotas, parse_quota_key, quota_key
from kclient.gateway.setting import INT_MAX
from kclient.memory_ledger import LimitedAccount, MemoryLedger

WINDOW = RateWindow()
IN, OUT, TIME, TOPICS = "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"


def test_a_burst_is_allowed_what_comes_in_ten_seconds() -> None:
    rate = WindowedRate(WINDOW)
    rate.record(10_000, 50_000)
    assert rate.throttle_ms(1000, 50_000) == 0
    rate.record(500, 50_000)
    assert rate.throttle_ms(1000, 50_000) == 500
    assert rate.throttle_ms(1000, 50_499) == 1
    assert rate.throttle_ms(1000, 50_500) == 0


def test_what_is_out_of_the_window_does_not_count() -> None:
    rate = WindowedRate(WINDOW)
    rate.record(10_000, 1_000)
    rate.record(10_000, 11_000)
    assert rate.throttle_ms(1000, 11_000) > 0
    assert rate.throttle_ms(1000, 11_999) > 0
    assert rate.throttle_ms(1000, 12_000) == 0, "the first is eleven seconds ago"
    assert rate.throttle_ms(0.1, 21_999) > 0
    assert rate.throttle_ms(0.1, 22_000) == 0


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.floats(0.1, 1e6)), min_size=1, max_size=40),
    st.floats(0.5, 1e5),
)
def test_the_time_grows_with_what_is_used(records: list[tuple[int, float]], limit: float) -> None:
    """And with a smaller quota; it is over when nothing has come for the whole window."""
    rate, now = WindowedRate(WINDOW), 0
    for gap, value in records:
        now += gap
        rate.record(value, now)
    throttled = rate.throttle_ms(limit, now)
    assert rate.throttle_ms(limit / 2, now) >= throttled
    rate.record(limit * 20, now)
    assert rate.throttle_ms(limit, now) > throttled or throttled == LONGEST_MS
    rate.record(-limit * 20, now)
    assert abs(rate.throttle_ms(limit, now) - throttled) <= 1
    assert rate.throttle_ms(limit, now + WINDOW.length_ms) == 0


def test_nothing_is_allowed_where_the_quota_is_nothing() -> None:
    rate = WindowedRate(WINDOW)
    rate.record(1, 0)
    assert rate.throttle_ms(0, 0) == LONGEST_MS


def test_tokens() -> None:
    bucket = TokenBucket(WINDOW)
    assert bucket.tokens(2, 0) == 22
    bucket.take(20, 2, 0)
    assert bucket.throttle_ms(2, 0) == 0
    bucket.take(10, 2, 1_000)
    assert bucket.tokens(2, 1_000) == -6
    assert bucket.throttle_ms(2, 1_000) == 3_000
    assert bucket.throttle_ms(2, 3_999) == 1
    assert bucket.throttle_ms(2, 4_000) == 0
    assert not bucket.is_full(2, 14_999)
    assert bucket.is_full(2, 15_000)


@pytest.mark.parametrize("least", [5e-324, 1e-310, 1e-300])
def test_the_least_quotas_of_all_are_told_as_the_longest_time(least: float) -> None:
    check_value((("client-id", None),), TIME, least)
    rate, bucket = WindowedRate(WINDOW), TokenBucket(WINDOW)
    rate.record(0.5, 0)
    assert rate.throttle_ms(least, 0) == LONGEST_MS
    bucket.take(1, least, 0)
    assert bucket.throttle_ms(least, 0) == LONGEST_MS


# Entities

ALL: list[dict[str, str | None]] = [
    {"user": "u", "client-id": "c"},
    {"user": "u", "client-id": None},
    {"user": "u"},
    {"user": None, "client-id": "c"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "c"},
    {"client-id": None},
]
"""In Kafka's order: the first that there is holds."""


def quotas_of(*entities: tuple[dict[str, str | None], dict[str, float]], memory: int = 1 << 24) -> ClientQuotas:
    account = MemoryLedger().part(memory).limited("quotas", 1)
    found = ClientQuotas(WINDOW, WINDOW, account)
    for names, quotas in entities:
        found.put(entity_of(names), quotas)
    return found


@pytest.mark.parametrize("first", range(len(ALL)))
def test_the_most_specific_quota_holds(first: int) -> None:
    quotas = quotas_of(*((names, {IN: 10.0 + number}) for number, names in enumerate(ALL) if number >= first))
    meter = quotas.limits(None, "u", "c", 0).produce
    assert meter is not None
    assert meter.limit == 10.0 + first


def test_each_quota_is_looked_for_by_itself() -> None:
    quotas = quotas_of(({"user": "u", "client-id": "c"}, {IN: 1.0}), ({"client-id": None}, {IN: 9.0, OUT: 2.0}))
    found = quotas.limits(None, "u", "c", 0)
    assert found.produce is not None
    assert found.fetch is not None
    assert (found.produce.limit, found.fetch.limit, found.request) == (1.0, 2.0, None)
    assert not quotas_of(({"user": "v"}, {IN: 1.0})).limits(None, "u", "c", 0).any


def test_who_shares_a_quota() -> None:
    """All clients of a user that has one, and of a client id; each pair by itself where both are named."""
    for names, shared in (
        ({"user": "u"}, [("u", "c"), ("u", "d"), ("u", None)]),
        ({"user": None}, [("u", "c"), ("u", "d")]),
        ({"client-id": "c"}, [("u", "c"), ("v", "c")]),
        ({"client-id": None}, [("u", "c"), ("v", "c")]),
        ({"client-id": None}, [("u", None), ("v", "")]),
    ):
        quotas = quotas_of((names, {IN: 1.0}))
        assert len({id(quotas.limits(None, user, client, 0).produce) for user, client in shared}) == 1, names
    for each in ({"user": "u", "client-id": None}, {"user": None, "client-id": None}, {"client-id": None}):
        quotas = quotas_of((each, {IN: 1.0}))
        assert quotas.limits(None, "u", "c", 0).produce is not quotas.limits(None, "u", "d", 0).produce


def test_a_changed_quota_counts_what_was_used_before() -> None:
    quotas = quotas_of(({"user": "u"}, {IN: 1000.0}))
    found = quotas.limits(None, "u", "c", 0)
    assert found.produce is not None
    found.produce.measure.record(5_000, 0)
    quotas.put(entity_of({"user": "u"}), {IN: 100.0})
    assert found.epoch is not quotas.epoch
    again = quotas.limits(None, "u", "c", 0).produce
    assert again is found.produce
    assert again.measure.throttle_ms(again.limit, 0) == 40_000
    quotas.put(entity_of({"user": "u"}), None)
    assert not quotas.active
    assert not quotas.limits(None, "u", "c", 0).any


def test_meters_that_say_nothing_are_dropped() -> None:
    quotas = quotas_of(({"client-id": None}, {IN: 1.0, TOPICS: 1.0}))
    found = quotas.limits(None, "u", "busy", 20_000)
    assert found.mutation is not None
    found.mutation.measure.take(100, 1.0, 20_000)
    assert len(quotas) == 2
    quotas.sweep(31_000)
    assert len(quotas) == 1, "tokens are owed for longer than the window"
    assert quotas.limits(None, "u", "busy", 31_000).mutation is found.mutation
    quotas.sweep(130_000)
    assert len(quotas) == 0


def test_a_flood_of_client_ids(caplog: pytest.LogCaptureFixture) -> None:
    """It takes no more memory than there is, and the busy ones are remembered."""
    caplog.set_level(logging.WARNING)
    memory = MemoryLedger().part(1 << 24)
    account = memory.limited("quotas", 16)
    quotas = ClientQuotas(WINDOW, WINDOW, account)
    quotas.put(entity_of({"client-id": None}), {IN: 100.0})
    busy = quotas.limits(None, "u", "busy", 0).produce
    assert busy is not None
    for number in range(5_000):
        busy.measure.record(1, number)
        quotas.limits(None, "u", f"flood-{number}", number)
        assert account.held <= account.limit
    assert quotas.limits(None, "u", "busy", 5_000).produce is busy
    assert len(caplog.records) == 1
    quotas.sweep(1_000_000)
    assert account.held == 0


@pytest.mark.parametrize(
    ("names", "name", "value", "why"),
    [
        ({"user": "a"}, "nothing", 1, "Invalid configuration key nothing"),
        ({"user": "a"}, "connection_creation_rate", 1, "Invalid configuration key"),
        ({"ip": None}, IN, 1, "Invalid configuration key"),
        ({"user": "a"}, IN, 0, "must be greater than 0"),
        ({"user": "a"}, IN, -1, "must be greater than 0"),
        ({"user": "a"}, IN, 1.5, "cannot be a fractional value"),
        ({"user": "a"}, IN, 1e19, "too large for a LONG"),
        ({"ip": "1.2.3.4"}, "connection_creation_rate", 2.0**31, "too large for an INT"),
        ({"user": "a"}, TIME, float("nan"), "is a number"),
        ({"user": "a"}, TOPICS, float("inf"), "is a number"),
    ],
)
def test_quotas_that_are_refused(names: dict[str, str | None], name: str, value: float, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        check_value(entity_of(names), name, value)


@pytest.mark.parametrize(
    "names", [{}, {"group": "g"}, {"user": ""}, {"ip": "1.2.3.4", "user": "a"}, {"client-id": "x" * 1025}]
)
def test_entities_that_are_refused(names: dict[str, str | None]) -> None:
    with pytest.raises(InvalidRequestError):
        entity_of(names)


# Rows

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
entities = st.one_of(
    st.fixed_dictionaries({"ip": st.none() | texts}),
    st.fixed_dictionaries({"user": st.none() | texts}, optional={"client-id": st.none() | texts}),
    st.fixed_dictionaries({"client-id": st.none() | texts}),
).map(entity_of)


@given(entities, st.floats(1e-6, 1e300))
def test_rows_say_what_was_written(entity: Entity, value: float) -> None:
    key = quota_key(entity)
    assert parse_quota_key(key) == entity
    quotas = {"connection_creation_rate": 7.0} if entity[0][0] == "ip" else {IN: 5.0, TIME: value}
    assert decode_quotas(key, encode_quotas(quotas)) == quotas


@pytest.mark.parametrize("key", ["kafka/quota/", "kafka/quota/user", "kafka/quota/group=a", "kafka/quota/ip=a,user=b"])
def test_keys_that_name_no_entity(key: str) -> None:
    with pytest.raises(ValueError, match=r"kafka/quota"):
        decode_quotas(key, encode_quotas({IN: 1.0}))


@pytest.mark.parametrize("quotas", [{}, {"nothing": 1.0}, {IN: -1.0}, {IN: float("inf")}])
def test_rows_that_make_no_sense(quotas: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_quotas("kafka/quota/user=a", encode_quotas(quotas))


# Connections


def _memory(size: int = 1 << 30) -> LimitedAccount:
    return MemoryLedger().part(size).limited("connection rates", 64)


def test_a_flood_of_addresses_takes_so_much_memory_and_no_more() -> None:
    memory, now = _memory(64 << 20), 0.0
    arrivals = Arrivals(WINDOW, lambda: INT_MAX, {}, lambda: now, Throttles(), memory)
    arrivals.default = 1.0
    for number in range(3_000):
        arrivals.refused_for(f"2001:db8::{number:x}")
        assert memory.held <= 1 << 20
    assert memory.held == 1_500 * len(arrivals._by_address) > 0
    now = 60.0
    arrivals.refused_for("10.0.0.1")
    assert memory.held == 1_500 * len(arrivals._by_address) == 1_500, "nothing is known of the others any more"


def test_how_fast_connections_may_come() -> None:
    class Label:
        listener = "SLOW"

    throttles, now, most = Throttles(), 100.0, INT_MAX
    arrivals = Arrivals(WINDOW, lambda: most, {"SLOW": 1}, lambda: now, throttles, _memory())
    assert [arrivals.pause(object()) for _ in range(100)] == [0.0] * 100, "any other listener"
    assert [arrivals.pause(Label()) for _ in range(12)] == [0.0] * 10 + [1.0] * 2, "a second at most"
    most = 20
    assert arrivals.pause(object()) == 0.0, "what came while there was no limit"
    assert arrivals.refused_for("10.0.0.1") == 0.0
    arrivals.default = 1.0
    arrivals.limits = {"10.0.0.2": 2.0}
    assert [arrivals.refused_for("10.0.0.1") for _ in range(11)] == [0.0] * 10 + [1.0]
    assert [arrivals.refused_for("10.0.0.2") for _ in range(21)] == [0.0] * 20 + [0.5]
    now += 0.5
    assert arrivals.refused_for("10.0.0.2") == 0.0, "those that were refused do not count"
    for number in range(30_000):
        arrivals.refused_for(f"10.1.{number // 256}.{number % 256}")
    assert len(arrivals._by_address) <= 10_000


def _addresses() -> tuple[Arrivals, AddressLimits]:
    arrivals = Arrivals(WINDOW, lambda: INT_MAX, {}, lambda: 0.0, Throttles(), _memory())
    return arrivals, AddressLimits(arrivals, lambda *_, **__: pytest.fail("there is nothing to look up"))


def test_thousands_of_addresses_take_time_for_each_and_not_for_all_others() -> None:
    arrivals, limits = _addresses()
    begun = time.process_time()
    for number in range(10_000):
        limits.put(f"10.0.{number // 256}.{number % 256}", 5.0)
    assert time.process_time() - begun < 2.0, "one for each pair of them takes ten times as long"
    assert len(arrivals.limits) == 10_000


def test_an_address_that_is_written_in_several_ways() -> None:
    arrivals, limits = _addresses()
    limits.put("::1", 1.0)
    limits.put("0:0:0:0:0:0:0:1", 2.0)
    assert arrivals.limits == {"::1": 2.0}, "the last one holds"
    limits.put("::1", 3.0)
    assert arrivals.limits == {"::1": 3.0}
    limits.put("::1", None)
    assert arrivals.limits == {"::1": 2.0}, "the other is left"
    limits.put("0:0:0:0:0:0:0:1", None)
    assert arrivals.limits == {}


@pytest.mark.anyio
async def test_a_host_that_is_found_when_its_rate_has_changed_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is not cancelled any more once what it waits for is there."""

    async def found(_: str) -> list[str]:
        return ["10.0.0.1"]

    class Task:
        def cancel(self) -> None:
            pass

    begun: list[Coroutine[Any, Any, None]] = []

    def spawn(function: Callable[..., Coroutine[Any, Any, None]], *args: object, name: str) -> Task:
        begun.append(function(*args))
        return Task()

    monkeypatch.setattr(addresses, "addresses_of", found)
    arrivals = Arrivals(WINDOW, lambda: INT_MAX, {}, lambda: 0.0, Throttles(), _memory())
    limits = AddressLimits(arrivals, spawn)  # type: ignore[arg-type]
    limits.put("host", 1.0)
    limits.put("host", 2.0)
    first, second = begun
    await first
    assert arrivals.limits == {}
    await second
    assert arrivals.limits == {"10.0.0.1": 2.0}
    limits.put("host", 3.0)
    limits.put("host", None)
    await begun[2]
    assert arrivals.limits == {}
