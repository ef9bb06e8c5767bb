"""The limit that a server sets: batches built beforehand, pipelined on one plain socket, answers hardly looked at."""

from __future__ import annotations

import socket
import struct
import time

from kclient.protocol.framing import decode_response, encode_request
from kclient.protocol.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kclient.records import BatchBuilder, iter_headers

PARTITIONS = 4
RECORDS_PER_BATCH = 8000
IN_FLIGHT = 5

_PRODUCE_VERSION = 3
_FETCH_VERSION = 4


class RawClient:
    """One plain socket to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._buffer = bytearray(80 << 20)

    def close(self) -> None:
        self._socket.close()

    def produce(self, topic: str, records: int, *, acks: int = -1) -> float:
        """Sends that many records of 100 bytes, five requests in flight; records per second."""
        builder = BatchBuilder(limit=4 << 20)
        now = int(time.time() * 1000)
        for _ in range(RECORDS_PER_BATCH):
            builder.append(now, None, b"x" * 100)
        batch = bytes(builder.build())
        requests = [
            b"".join(
                encode_request(
                    ProduceRequest(
                        acks=acks,
                        timeout_ms=30_000,
                        topic_data=[
                            TopicProduceData(
                                name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
                            )
                        ],
                    ),
                    _PRODUCE_VERSION,
                    correlation_id=partition,
                    client_id="raw",
                )
            )
            for partition in range(PARTITIONS)
        ]
        batches = records // RECORDS_PER_BATCH
        sent = answered = 0
        started = time.perf_counter()
        while answered < batches:
            while sent < batches and sent - answered < IN_FLIGHT:
                self._socket.sendall(requests[sent % PARTITIONS])
                sent += 1
            _, response = decode_response(ProduceResponse, self._frame(), _PRODUCE_VERSION)
            answer = response.responses[0].partition_responses[0]
            if answer.error_code:
                raise RuntimeError(f"the broker refused a batch with the error {answer.error_code}")
            answered += 1
        return batches * RECORDS_PER_BATCH / (time.perf_counter() - started)

    def fetch(self, topic: str, records: int) -> float:
        """Reads that many records, batches counted by their headers but not decoded; records per second."""
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        read = 0
        started = time.perf_counter()
        while read < records:
            self._socket.sendall(b"".join(encode_request(_fetch(topic, offsets), _FETCH_VERSION, 1, "raw")))
            _, response = decode_response(FetchResponse, self._frame(), _FETCH_VERSION)
            for answer in response.responses[0].partitions:
                for _, header in iter_headers(answer.records or b""):
                    offsets[answer.partition_index] = header.next_offset
                    read += header.count
        return read / (time.perf_counter() - started)

    def _frame(self) -> memoryview:
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, count: int) -> memoryview:
        view = memoryview(self._buffer)[:count]
        got = 0
        while got < count:
            more = self._socket.recv_into(view[got:])
            if not more:
                raise RuntimeError("the broker hung up")
            got += more
        return view


def _fetch(topic: str, offsets: dict[int, int]) -> FetchRequest:
    partitions = [
        FetchRequestPartition(partition=number, fetch_offset=offset, partition_max_bytes=16 << 20)
        for number, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=64 << 20, topics=[FetchRequestTopic(topic=topic, partitions=partitions)]
    )
