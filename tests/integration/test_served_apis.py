"""What ApiVersions tells of a gateway, beside what it tells of real brokers: what differs has its reason."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from kclient.protocol.registry import ApiKey
from tests.kafka_server import KafkaServer
from tests.wire_session import wire_session

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "generate" / "served_apis.py"


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


async def told(address: str) -> dict[int, tuple[int, int]]:
    async with wire_session(address) as session:
        return dict(session.connection.api_versions)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_differs_has_its_reason(
    kafka: KafkaServer, kafka3: KafkaServer, gateway: str, table: dict[str, Any]
) -> None:
    newest, oldest, ours = [await told(address) for address in (kafka.bootstrap, kafka3.bootstrap, gateway)]
    missing = newest.keys() - ours.keys()
    left_out, sometimes, other = table["LEFT_OUT"], table["SOMETIMES"], table["OTHER_VERSIONS"]
    assert missing == (left_out.keys() | sometimes.keys()) & newest.keys(), names(missing)
    assert left_out.keys() <= newest.keys(), "what clients never see needs no reason"
    assert not ours.keys() - newest.keys()
    assert not oldest.keys() - newest.keys(), "what Kafka 4 has dropped would need one, too"
    wanted = {key: (min(low, oldest.get(key, (low, 0))[0]), high) for key, (low, high) in newest.items()}
    different = {key for key, versions in ours.items() if versions != wanted[key]}
    assert different == set(other), {ApiKey(key).message_name: (ours[key], wanted[key]) for key in different}


def names(keys: set[int]) -> list[str]:
    return [ApiKey(key).message_name for key in sorted(keys)]
