"""As `hostile_clients`: what one client can do with quotas, its own and those that it may change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from kclient.protocol.framing import encode_request
from kclient.protocol.messages import (
    AlterClientQuotasRequest,
    ApiVersionsRequest,
    DescribeClientQuotasRequest,
    ProduceRequest,
)
from kclient.protocol.messages import produce as produce_
from kclient.protocol.messages import users as users_
from tests.gateway_wire import batch_of
from tests.hostile_clients import Course, Site, attack, numbered
from tests.neighbour_probe import TOPIC, framed

MOST = 1_000
"""Entities that one request may change."""
RATES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
ENOUGH = 1e9
"""A quota that bounds nothing."""


def _entry(
    entity: Iterable[tuple[str, str | None]], value: float = ENOUGH, *, remove: bool = False
) -> users_.AlterClientQuotasRequestEntryData:
    return users_.AlterClientQuotasRequestEntryData(
        entity=[users_.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[users_.OpData(key=key, value=value, remove=remove) for key in RATES],
    )


def _altering(names: Iterable[str], *, remove: bool = False) -> bytes:
    entries = [_entry((("user", name), ("client-id", name)), remove=remove) for name in names]
    return framed(AlterClientQuotasRequest(entries=entries), 1)


def _alter(site: Site, *entries: users_.AlterClientQuotasRequestEntryData) -> None:
    answer = site.call(AlterClientQuotasRequest(entries=list(entries)), 1)
    assert not any(each.error_code for each in answer.entries), answer


@attack("AlterClientQuotas of 1,000 entities with the longest names, set and removed")
def come_and_go(site: Site) -> Course:
    names = [name.rjust(1_000, "x") for name in numbered("", site.many(MOST))]
    yield
    site.repeat(_altering(names), _altering(names, remove=True), connections=2)


@attack("DescribeClientQuotas of 5,000 entities")
def described(site: Site) -> Course:
    for start in range(0, site.many(5_000), MOST):
        names = numbered(f"{start}-", min(MOST, site.many(5_000)))
        _alter(site, *(_entry((("user", name), ("client-id", name))) for name in names))
    everything = framed(DescribeClientQuotasRequest(components=[]), 1)
    kinds = [users_.ComponentData(entity_type=kind, match_type=2) for kind in ("user", "client-id")]
    strict = framed(DescribeClientQuotasRequest(components=kinds, strict=True), 1)
    yield
    site.repeat(everything, strict, connections=4)


@attack("AlterClientQuotas of 200k entities, refused")
def too_many(site: Site) -> Course:
    empty = users_.AlterClientQuotasRequestEntryData()
    frame = framed(AlterClientQuotasRequest(entries=[empty] * site.many(200_000)), 1)
    yield
    site.repeat(frame)


@attack("AlterClientQuotas with 10,000 quotas of one entity, and the longest names")
def absurd(site: Site) -> Course:
    wide = users_.AlterClientQuotasRequestEntryData(
        entity=[users_.AlterClientQuotasRequestEntityData(entity_type="user", entity_name="x")],
        ops=[users_.OpData(key=name, value=ENOUGH) for name in numbered("rate-", site.many(10_000))],
    )
    huge = "x" * 32_000
    frames = [framed(AlterClientQuotasRequest(entries=[wide]), 1)]
    for entity in ((("user", huge),), ((huge, "x"),)):
        frames.append(framed(AlterClientQuotasRequest(entries=[_entry(entity)]), 1))
    key = users_.OpData(key=huge, value=1.0)
    frames.append(
        framed(
            AlterClientQuotasRequest(
                entries=[users_.AlterClientQuotasRequestEntryData(entity=wide.entity, ops=[key])],
            ),
            1,
        )
    )
    component = users_.ComponentData(entity_type=huge, match_type=0, match="x")
    frames.append(framed(DescribeClientQuotasRequest(components=[component]), 1))
    yield
    site.repeat(*frames)


@attack("a new client id with each request, under quotas of the default")
def new_client_ids(site: Site) -> Course:
    _alter(site, _entry((("client-id", None),)))
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")

    def frames(first: int) -> Iterator[bytes]:
        for number in itertools.count(first):
            yield b"".join(
                b"".join(encode_request(request, 3, 1, f"{number * 100 + each}".rjust(200, "x"))) for each in range(100)
            )

    yield
    with site.client() as client:
        for block in frames(0):
            if site.over:
                return
            try:
                client.send(block)
                for _ in range(100):
                    client.discard()
                    site.answered += 1
            except OSError:
                return


@attack("100 throttled connections that go on sending")
def throttled(site: Site) -> Course:
    _alter(
        site,
        users_.AlterClientQuotasRequestEntryData(
            entity=[users_.AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name="throttled")],
            ops=[users_.OpData(key=key, value=1.0) for key in RATES[:2]],
        ),
    )
    data = [produce_.PartitionProduceData(index=0, records=batch_of(b"x" * 1_000))]
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[produce_.TopicProduceData(name=TOPIC, partition_data=data)]
    )
    frame = b"".join(encode_request(request, 9, 1, "throttled"))
    yield
    site.pipeline(frame, connections=site.many(100))
