"""Share groups at gateways that are killed: what was accepted is not delivered again, and nothing else is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kclient.sync
from kclient import AcknowledgeType
from kclient.admin import ConfigResource, ConfigResourceType
from kclient.errors import KafkaError
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.timeout(180)

COUNT = 600


@pytest.fixture
def process(tmp_path: Path) -> Iterator[GatewayProcess]:
    found = GatewayProcess(tmp_path / "data")
    found.start()
    try:
        yield found
    finally:
        found.stop(kill=True)


def test_what_was_accepted_is_not_delivered_again(process: GatewayProcess) -> None:
    chance = random.Random(11)
    with kclient.sync.Admin(bootstrap_servers=process.bootstrap) as admin:
        admin.create_topic("t", 3)
        settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}
        admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, "g"): settings})
    with kclient.sync.Producer(bootstrap_servers=process.bootstrap) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(COUNT)])
        producer.flush()
    accepted: set[tuple[int, int]] = set()
    unsure: set[tuple[int, int]] = set()
    kills = 0
    until = time.monotonic() + 150
    settings = {"bootstrap_servers": process.bootstrap, "group_id": "g", "share_acknowledgement_mode": "explicit"}
    with kclient.sync.ShareConsumer("t", **settings, max_poll_records=40) as consumer:
        while len(accepted | unsure) < COUNT and time.monotonic() < until:
            records = consumer.poll(2.0)
            places = [(record.partition, record.offset) for record in records]
            assert not accepted.intersection(places)
            said: dict[int, set[tuple[int, int]]] = {}
            for record in records:
                kind = chance.choice((AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE))
                if kind is AcknowledgeType.ACCEPT:
                    said.setdefault(record.partition, set()).add((record.partition, record.offset))
                consumer.acknowledge(record, kind)
            killed = bool(records) and kills < 3 and chance.random() < 0.2
            if killed:
                kills += 1
                process.stop(kill=True)
                process.start()
            for partition, error in consumer.commit().items():
                assert error is None or killed or isinstance(error, KafkaError)
                (accepted if error is None else unsure).update(said.get(partition.partition, ()))
    assert kills == 3
    assert len(accepted | unsure) == COUNT
    with kclient.sync.Admin(bootstrap_servers=process.bootstrap) as admin:
        offsets = admin.list_share_group_offsets("g")
        assert sum(each.lag or 0 for each in offsets.values()) <= len(unsure - accepted)


def test_a_group_goes_on_where_it_was_when_the_gateway_was_killed(process: GatewayProcess) -> None:
    settings = {"bootstrap_servers": process.bootstrap, "group_id": "g", "share_acknowledgement_mode": "explicit"}
    with kclient.sync.Admin(bootstrap_servers=process.bootstrap) as admin:
        admin.create_topic("t", 1)
        admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, "g"): {"share.auto.offset.reset": "earliest"}})
    with kclient.sync.Producer(bootstrap_servers=process.bootstrap) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(6)])
    with kclient.sync.ShareConsumer("t", **settings) as consumer:
        while not (records := consumer.poll(2.0)):
            pass
        kinds = {0: AcknowledgeType.ACCEPT, 1: AcknowledgeType.RELEASE, 2: AcknowledgeType.REJECT}
        for record in list(records)[:3]:
            consumer.acknowledge(record, kinds[record.offset])
        assert list(consumer.commit().values()) == [None]
        process.stop(kill=True)
        process.start()
        for record in list(records)[3:]:
            consumer.acknowledge(record)
        [error] = consumer.commit().values()
        assert error is not None  # nobody knows any more who had them
    with kclient.sync.ShareConsumer("t", **settings) as other:
        while not (records := other.poll(2.0)):
            pass
        assert [(each.offset, each.delivery_count) for each in records] == [(1, 2), (3, 1), (4, 1), (5, 1)]
