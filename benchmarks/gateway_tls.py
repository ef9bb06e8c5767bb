"""What encryption costs at the gateway: records in by listeners with TLS and logins, beside one in the clear.

Client and gateway are two processes of one machine, and both encrypt: with a core for each, the rate falls by what the
busier one adds.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import alternating, rate, report
from kclient.admin import NewTopic
from kclient.sync import Admin, Producer
from tests.certificates import Authority
from tests.gateway_process import GatewayProcess
from tests.kafka_server import free_port

PASSWORD = "of the benchmark"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_bench="{PASSWORD}";'
PARTITIONS = 4
_topics = (f"tls-{number}" for number in itertools.count())


def produced(settings: dict[str, Any], plain: str, records: int) -> float:
    """The rate into a new topic, which is deleted afterwards."""
    topic = next(_topics)
    with Admin(bootstrap_servers=plain) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS)])
        with Producer(settings) as producer:
            producer.partitions_for(topic)
            batch = [bytes(100)] * 10_000

            def send() -> None:
                for number in range(records // len(batch)):
                    producer.send_batch(topic, batch, partition=number % PARTITIONS)
                producer.flush()

            figure = rate(records, send)
        admin.delete_topics([topic])
    return figure


def main(records: int = 2_000_000) -> None:
    authority = Authority()
    ports = {"SSL": free_port(), "SASL_SSL": free_port()}
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "listeners": ",".join(
                ["PLAINTEXT://127.0.0.1:0", *(f"{n}://127.0.0.1:{port}" for n, port in ports.items())]
            ),
            "ssl.keystore.location": str(authority.issue("127.0.0.1").write(Path(folder) / "gateway.pem")),
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        }
        process = GatewayProcess(Path(folder) / "data", durability="written", config=config, listens=False)
        process.start()
        try:
            encrypted = {"ssl.truststore.certificates": authority.pem}
            login = {"sasl.mechanism": "PLAIN", "sasl.username": "bench", "sasl.password": PASSWORD}
            settings = {
                "SSL": {"bootstrap.servers": f"127.0.0.1:{ports['SSL']}", **encrypted},
                "SASL_SSL": {"bootstrap.servers": f"127.0.0.1:{ports['SASL_SSL']}", **encrypted, **login},
                "PLAINTEXT": {"bootstrap.servers": process.bootstrap},
            }
            contenders = {
                name: partial(produced, {"security.protocol": name, **each}, process.bootstrap, records)
                for name, each in settings.items()
            }
            report(f"{records:,} records of 100 bytes in, page cache", alternating(contenders))
        finally:
            process.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
