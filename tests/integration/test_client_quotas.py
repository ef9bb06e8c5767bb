"""Client quotas by the admin client and `kclient quotas`, on real Kafka and on a gateway."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator

import anyio.to_thread
import pytest

import kclient
from kclient.admin import Admin, ClientQuotaEntity, ClientQuotaFilter, NewTopic, QuotaName
from kclient.cli.app import run
from kclient.errors import InvalidRequestError
from kclient.protocol import messages as m
from tests.kafka_server import KafkaServer
from tests.wire_session import until, wire_session

pytestmark = pytest.mark.anyio

IN, OUT = "producer_byte_rate", "consumer_byte_rate"


@pytest.fixture
async def admin(broker: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=broker) as found:
        yield found


@pytest.fixture
def name() -> str:
    return f"quotas {uuid.uuid4().hex[:8]}"


async def test_what_is_set_is_found_until_it_is_removed(admin: Admin, name: str) -> None:
    user, both = ClientQuotaEntity(user=name), ClientQuotaEntity(user=name, client_id=f"{name} client")
    default = ClientQuotaEntity(user=name, client_id=QuotaName.DEFAULT)
    quotas = {user: {IN: 1000.0, OUT: 2000.0}, both: {"request_percentage": 50.5}, default: {IN: 7.0}}
    await admin.alter_client_quotas(quotas, validate_only=True)
    of_user = ClientQuotaFilter(user=name)
    assert await admin.describe_client_quotas(of_user) == {}
    await admin.alter_client_quotas(quotas)
    assert await until(lambda: admin.describe_client_quotas(of_user), lambda found: len(found) == 3) == quotas
    for wanted, entities in (
        (ClientQuotaFilter(user=name, strict=True), {user}),
        (ClientQuotaFilter(user=name, client_id=QuotaName.ANY), {both, default}),
        (ClientQuotaFilter(user=name, client_id=QuotaName.DEFAULT), {default}),
        (ClientQuotaFilter(client_id=f"{name} client"), {both}),
    ):
        assert set(await admin.describe_client_quotas(wanted)) == entities, wanted
    assert {user, both, default} <= set(await admin.describe_client_quotas())
    await admin.alter_client_quotas({user: {IN: None, OUT: 3000}})
    left = {user: {OUT: 3000.0}, both: quotas[both], default: quotas[default]}
    await until(lambda: admin.describe_client_quotas(of_user), lambda found: found == left)
    await admin.alter_client_quotas({user: {OUT: None}, both: {"request_percentage": None}, default: {IN: None}})
    await until(lambda: admin.describe_client_quotas(of_user), lambda found: not found)


async def test_one_that_is_refused_does_not_keep_the_others(admin: Admin, name: str) -> None:
    fine, wrong = ClientQuotaEntity(client_id=name), ClientQuotaEntity(ip=QuotaName.DEFAULT)
    with pytest.raises(InvalidRequestError, match="Quota of ip <default>"):
        await admin.alter_client_quotas({fine: {IN: 10**6}, wrong: {IN: 10}})
    of_client = ClientQuotaFilter(client_id=name)
    await until(lambda: admin.describe_client_quotas(of_client), lambda found: found == {fine: {IN: 10.0**6}})
    with pytest.raises(InvalidRequestError):
        await admin.alter_client_quotas({fine: {"no_such_rate": 1}})
    await admin.alter_client_quotas({fine: {IN: None}})


def described(*components: tuple[str, int, str | None], strict: bool = False) -> m.DescribeClientQuotasRequest:
    rows = [m.ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
    return m.DescribeClientQuotasRequest(components=rows, strict=strict)


REFUSED_FILTERS = [
    described(("", 0, "a")),
    described(("user", 0, "a"), ("user", 1, None)),
    described(("group", 0, "a")),
    described(("user", 0, None)),
    described(("user", 1, "a")),
    described(("user", 2, "a")),
    described(("user", 3, None)),
    described(("user", 2, None), ("ip", 2, None)),
]
REFUSED: list[tuple[dict[str, str | None], dict[str, float | None]]] = [
    ({}, {IN: 1}),
    ({"user": ""}, {IN: 1}),
    ({"client-id": ""}, {IN: 1}),
    ({"group": "g"}, {IN: 1}),
    ({"user": "a", "ip": "1.2.3.4"}, {IN: 1}),
    ({"user": "a"}, {"connection_creation_rate": 1}),
    ({"user": "a"}, {"nothing": 1}),
    ({"user": "a"}, {"SCRAM-SHA-256": 1}),
    ({"user": "a"}, {IN: 0}),
    ({"user": "a"}, {IN: -1}),
    ({"user": "a"}, {IN: 1.5}),
    ({"user": "a"}, {IN: 1e19}),
    ({"user": "a"}, {"request_percentage": 0}),
    ({"user": "a"}, {"request_percentage": 1e19}),
    ({"user": "a"}, {"nothing": None}),
    ({"user": "a"}, {IN: None}),
    ({"ip": "1.2.3.4"}, {IN: 1}),
    ({"ip": "1.2.3.4"}, {"connection_creation_rate": 2.0**31}),
    ({"ip": "1.2.3.4"}, {"connection_creation_rate": 0.5}),
    ({"ip": "no.such.host.invalid"}, {"connection_creation_rate": 1}),
]
"""Some of them do nothing, and are no error."""


async def answers(bootstrap: str) -> list[tuple[int, str | None]]:
    """What a broker says to each of these."""
    found = []
    async with wire_session(bootstrap) as session:
        for each in REFUSED_FILTERS:
            answer = await session(each)
            assert answer.entries is None
            found.append((answer.error_code, answer.error_message))
        for names, quotas in REFUSED:
            entry = m.AlterClientQuotasRequestEntryData(
                entity=[m.AlterClientQuotasRequestEntityData(entity_type=k, entity_name=v) for k, v in names.items()],
                ops=[m.OpData(key=k, value=v or 0.0, remove=v is None) for k, v in quotas.items()],
            )
            for validate_only in (True, False):
                request = m.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
                (row,) = (await session(request)).entries
                assert {part.entity_type: part.entity_name for part in row.entity} == names
                found.append((row.error_code, row.error_message))
        twice = m.AlterClientQuotasRequestEntryData(
            entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name="twice")],
            ops=[m.OpData(key=IN, remove=True)],
        )
        (row,) = (await session(m.AlterClientQuotasRequest(entries=[twice, twice]))).entries
        found.append((row.error_code, row.error_message))
        assert (await session(described(strict=True))).entries == []
    return found


@pytest.mark.kafka
async def test_errors_are_kafkas(kafka: KafkaServer, gateway: str) -> None:
    theirs = [(code, text and text.replace("shouldnot", "should not")) for code, text in await answers(kafka.bootstrap)]
    assert await answers(gateway) == theirs


async def test_a_quota_acts(broker: str, admin: Admin, name: str) -> None:
    """A producer of that client id is throttled, and says so."""
    topic, entity = name.replace(" ", "-"), ClientQuotaEntity(client_id=name)
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.alter_client_quotas({entity: {IN: 1000}})
    await until(lambda: admin.describe_client_quotas(ClientQuotaFilter(client_id=name)), bool)
    ends = time.monotonic() + 30
    async with kclient.Producer(bootstrap_servers=broker, client_id=name) as producer:
        while not producer.metrics().value("produce-throttle-time-max") > 0:
            assert time.monotonic() < ends
            await (await producer.send(topic, b"x" * 5000))
        await admin.alter_client_quotas({entity: {IN: None}})


async def test_the_command(broker: str, admin: Admin, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def quotas(*arguments: str) -> int:
        return await anyio.to_thread.run_sync(run, ["quotas", *arguments, "--bootstrap", broker])

    wanted = ClientQuotaFilter(user=name)
    assert await quotas("set", "--user", name, "--default-client-id", f"{IN}=5", f"{OUT}=1e6") == 0
    assert await quotas("set", "--user", name, f"{IN}=7", "--dry-run") == 0
    await until(lambda: admin.describe_client_quotas(wanted), bool)
    capsys.readouterr()
    assert await quotas("list", "--user", name, "--output", "json") == 0
    row = {"user": name, "client_id": "<default>", "ip": None}
    assert json.loads(capsys.readouterr().out)["quotas"] == [
        {**row, "quota": OUT, "value": 1e6}, {**row, "quota": IN, "value": 5.0},
    ]  # fmt: skip
    assert await quotas("remove", "--user", name, "--default-client-id", IN, OUT) == 0
    await until(lambda: admin.describe_client_quotas(wanted), lambda found: not found)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", "producer_byte_rate=1"], "give user, client_id or ip"),
        (["set", "--user", "a", "producer_byte_rate"], "as in producer_byte_rate=1048576"),
        (["set", "--user", "a", "producer_byte_rate=nan"], "is a finite number"),
        (["set", "--user", "a", "--default-user", "x=1"], "exclude each other"),
        (["set", "--user", "a", "x=1", "x=2"], "x is given twice"),
        (["set", "--user", "a", "=5"], "as in producer_byte_rate=1048576"),
        (["set", "--user", "a", "x=1_0"], "as in producer_byte_rate=1048576"),
        (["list", "--user", ""], "is not empty"),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quotas", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    assert told in capsys.readouterr().err
