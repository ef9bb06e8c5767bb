"""Texts in requests that are as long as the protocol lets them be: each request is answered all the same."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.gateway.error_codes import text_of
from kclient.protocol import ApiKey, ApiMessage, Message, request_class, response_class
from kclient.protocol.schema import ArrayType, StructType
from kclient.protocol.types import STRING, Type
from tests.gateway_wire import Wire, connect, running
from tests.protocol_values import fitted

pytestmark = pytest.mark.anyio

MOST = 32_767
NOT_UNKNOWN = {
    "acks", "operation", "pattern_type_filter", "permission_type", "resource_pattern_type", "resource_type",
    "resource_type_filter",
}  # fmt: skip
"""Numbers that must not be 0: the connection would be closed, as on Kafka."""
TEXTS = {"ascii": "x" * MOST, "two bytes each": "é" * (MOST // 2)}


def full_of(kind: Type[Any], text: str) -> Any:
    """A value with one element in each array, and the text wherever there is one."""
    if isinstance(kind, ArrayType):
        return [full_of(kind.element, text)]
    if isinstance(kind, StructType):
        return request_full_of(kind.message, text)
    return text if kind is STRING else kind.default


def request_full_of(message: type[Message], text: str) -> Any:
    return message(
        **{item.name: 1 if item.name in NOT_UNKNOWN else full_of(item.type, text) for item in message.FIELDS}
    )


async def answer(gateway: Gateway, request: ApiMessage, version: int) -> Any:
    wire: Wire = connect(gateway)
    try:
        with anyio.fail_after(20):
            return await wire(request, version)
    finally:
        await wire.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_every_request_is_answered(text: str) -> None:
    async with running() as (gateway, _):
        served = gateway.parts.table.versions
        for key, (low, high) in served.items():
            for version in range(low, high + 1):
                request = fitted(request_full_of(request_class(ApiKey(key)), text), version)
                assert isinstance(await answer(gateway, request, version), response_class(ApiKey(key))), (key, version)


def test_what_is_told_keeps_its_beginning_and_its_end() -> None:
    told = text_of(f"the name {'x' * MOST} is too long")
    assert told.startswith("the name xxx")
    assert told.endswith("xxx is too long")
    assert len(told) < 1_010
    assert text_of("y" * 1_000) == "y" * 1_000
