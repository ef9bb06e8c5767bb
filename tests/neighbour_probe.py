"""How long a quiet client waits for its answers while others do what they like: `python -m tests.neighbour_probe`.

A process of its own, so that what is measured is the server and not the measuring: ApiVersions, Produce of 1 kB with
`acks=all` and Fetch of 1 kB, one after the other on one plain socket.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kclient.protocol.framing import decode_response, encode_request
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import ApiVersionsRequest, FetchResponse, ProduceResponse
from kclient.protocol.registry import response_class

TOPIC = "quiet"
KINDS = ("ApiVersions", "Produce", "Fetch")


@dataclass(frozen=True, slots=True)
class Waited:
    """Milliseconds that a kind of request took, at the median, at the 99th percentile and at worst."""

    count: int
    median: float
    p99: float
    worst: float
    own_p99: float
    """Without the time for which the processors were busy with other processes, as far as that is known."""
    own_worst: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Waited:
        """Of pairs of seconds: in all, and without waiting for a processor."""
        if not pairs:
            return cls(0, *[float("inf")] * 5)
        taken, own = (sorted(each) for each in zip(*pairs, strict=True))
        middle, late = len(taken) // 2, int(len(taken) * 0.99)
        found = (taken[middle], taken[late], taken[-1], own[late], own[-1])
        return cls(len(taken), *(value * 1000 for value in found))


class PlainClient:
    """A blocking socket that speaks in whole frames."""

    def __init__(
        self, port: int, timeout: float | None = 60.0, receive_buffer: int | None = None, host: str | None = None
    ) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        if host is not None:
            self.socket.bind((host, 0))
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def receive(self) -> bytes:
        """The next frame without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return bytes(self._exactly(size))

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def discard(self) -> int:
        """Receive the next frame and throw it away; how long it was."""
        (size,) = struct.unpack(">i", self._exactly(4))
        left = size
        room = memoryview(bytearray(min(max(size, 1), 1 << 18)))
        while left:
            got = self.socket.recv_into(room[: min(left, len(room))])
            if not got:
                raise ConnectionError("the server hung up")
            left -= got
        return size

    def call(self, request: ApiMessage, version: int) -> ApiMessage:
        assert request.API_KEY is not None
        answer = self.ask(framed(request, version))
        return decode_response(response_class(request.API_KEY), answer, version)[1]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view, got = memoryview(data), 0
        while got < count:
            more = self.socket.recv_into(view[got:])
            if not more:
                raise ConnectionError("the server hung up")
            got += more
        return data


def framed(request: ApiMessage, version: int, client_id: str = "x") -> bytes:
    return b"".join(encode_request(request, version, 1, client_id))


def _frames() -> dict[str, bytes]:
    from tests.gateway_wire import batch_of, fetch_request, produce_request

    return {
        "ApiVersions": framed(ApiVersionsRequest(client_software_name="probe", client_software_version="1"), 3),
        "Produce": framed(produce_request(TOPIC, batch_of(b"x" * 1024)), 9),
        "Fetch": framed(fetch_request(TOPIC, 0, max_bytes=1100, partition_max_bytes=1100), 11),
    }


def _check(kind: str, answer: bytes) -> None:
    if kind == "Produce":
        produced = decode_response(ProduceResponse, answer, 9)[1]
        assert not produced.responses[0].partition_responses[0].error_code, produced
    elif kind == "Fetch":
        fetched = decode_response(FetchResponse, answer, 11)[1]
        assert fetched.responses[0].partitions[0].records, fetched


class Processors:
    """How long the threads that a request needs have waited for a processor: this one, and the gateway's loop."""

    def __init__(self, gateway: int) -> None:
        tasks = (f"/proc/{gateway}/task/{gateway}/schedstat", "/proc/self/schedstat")
        try:
            self._files = [open(path, "rb", buffering=0) for path in tasks]  # noqa: SIM115  (as long as the process)
        except OSError:
            self._files = []  # not Linux

    def waited(self) -> float:
        """Seconds since their start."""
        total = 0
        for file in self._files:
            file.seek(0)
            total += int(file.read(100).split()[1])
        return total / 1e9


def main(port: int, seconds: float, gateway: int) -> None:
    frames = _frames()
    waited: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    processors = Processors(gateway)
    cuts = 0
    client = PlainClient(port)
    for kind in KINDS * 3:
        _check(kind, client.ask(frames[kind]))
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for kind in KINDS:
            before = processors.waited()
            began = time.perf_counter()
            try:
                _check(kind, client.ask(frames[kind]))
            except OSError:
                cuts += 1
                client.close()
                client = PlainClient(port)
            took = time.perf_counter() - began
            waited[kind].append((took, max(took - (processors.waited() - before), 0.0)))
        time.sleep(0.002)
    client.close()
    print(json.dumps({"waited": waited, "cuts": cuts}), flush=True)


class Probe:
    """The probe as a child process."""

    def __init__(self, port: int, seconds: float, gateway: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.neighbour_probe", str(port), str(seconds), str(gateway)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            self._process.wait()
            raise RuntimeError("the probe did not start")

    def start(self) -> None:
        """Begin to measure."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self, timeout: float) -> tuple[dict[str, Waited], int]:
        """What was measured, once the time is over, and how often the connection was cut."""
        try:
            out, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        found = json.loads(out)
        return {kind: Waited.of(pairs) for kind, pairs in found["waited"].items()}, found["cuts"]


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
