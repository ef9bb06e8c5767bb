"""The limit that a server sets: batches built beforehand, pipelined on one plain socket, answers hardly looked at."""

from __future__ import annotations

import socket
import struct
import time
from functools import cache

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

PRODUCE_VERSION = 3
FETCH_VERSION = 4


@cache
def prepared_batch(records: int = RECORDS_PER_BATCH) -> bytes:
    """A batch of that many records of 100 bytes."""
    builder = BatchBuilder(limit=4 << 20)
    now = int(time.time() * 1000)
    for _ in range(records):
        builder.append(now, None, b"x" * 100)
    return bytes(builder.build())


def produce_request(topic: str, partition: int, batch: bytes, acks: int = -1) -> ProduceRequest:
    """One batch for one partition."""
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(topic: str, offsets: dict[int, int]) -> FetchRequest:
    """What there is from those offsets on, at most 16 MiB a partition."""
    partitions = [
        FetchRequestPartition(partition=number, fetch_offset=offset, partition_max_bytes=16 << 20)
        for number, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=64 << 20, topics=[FetchRequestTopic(topic=topic, partitions=partitions)]
    )


def check_produced(response: ProduceResponse) -> None:
    """Raise if the broker refused the batch."""
    answer = response.responses[0].partition_responses[0]
    if answer.error_code:
        raise RuntimeError(f"the broker refused a batch with the error {answer.error_code}")


def count_fetched(response: FetchResponse, offsets: dict[int, int]) -> int:
    """How many records came, by the headers of their batches; moves the offsets on."""
    count = 0
    for answer in response.responses[0].partitions:
        for _, header in iter_headers(answer.records or b""):
            offsets[answer.partition_index] = header.next_offset
            count += header.count
    return count


@cache
def _receive_buffer() -> bytearray:
    """One for all runs: making it takes longer than receiving it full."""
    return bytearray(80 << 20)


class RawClient:
    """One plain socket to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._buffer = _receive_buffer()

    def close(self) -> None:
        self._socket.close()

    def produce(self, topic: str, records: int, *, acks: int = -1, records_per_batch: int = RECORDS_PER_BATCH) -> float:
        """Sends that many records of 100 bytes, five requests in flight; records per second."""
        batch = prepared_batch(records_per_batch)
        requests = [
            b"".join(encode_request(produce_request(topic, partition, batch, acks), PRODUCE_VERSION, partition, "raw"))
            for partition in range(PARTITIONS)
        ]
        batches = records // records_per_batch
        sent = answered = 0
        started = time.perf_counter()
        while answered < batches:
            while sent < batches and sent - answered < IN_FLIGHT:
                self._socket.sendall(requests[sent % PARTITIONS])
                sent += 1
            check_produced(decode_response(ProduceResponse, self._frame(), PRODUCE_VERSION)[1])
            answered += 1
        return batches * records_per_batch / (time.perf_counter() - started)

    def round_trips(self, topic: str, count: int) -> list[float]:
        """Sends that many batches of one record, each after the answer to the one before; seconds of each."""
        produce = produce_request(topic, 0, prepared_batch(1))
        request = b"".join(encode_request(produce, PRODUCE_VERSION, 0, "raw"))
        times = []
        for _ in range(count):
            started = time.perf_counter()
            self._socket.sendall(request)
            answer = self._frame()
            times.append(time.perf_counter() - started)
            check_produced(decode_response(ProduceResponse, answer, PRODUCE_VERSION)[1])
        return times

    def fetch(self, topic: str, records: int) -> float:
        """Reads that many records, batches counted by their headers but not decoded; records per second."""
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        read = 0
        started = time.perf_counter()
        while read < records:
            self._socket.sendall(b"".join(encode_request(fetch_request(topic, offsets), FETCH_VERSION, 1, "raw")))
            read += count_fetched(decode_response(FetchResponse, self._frame(), FETCH_VERSION)[1], offsets)
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
