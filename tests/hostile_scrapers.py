"""As `hostile_clients`: what can be done to the pages of a gateway, which ask nobody who they are."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from kclient.protocol.messages import OffsetCommitRequest
from kclient.protocol.messages import offsets as offsets_
from tests.hostile_clients import Course, Site, attack, numbered, side_by_side
from tests.neighbour_probe import framed


@contextmanager
def _at_the_pages(site: Site) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", site.door), timeout=30) as sock:
        yield sock


def scrape(site: Site, path: str) -> None:
    """Ask for a page again and again."""
    while not site.over:
        with suppress(OSError), _at_the_pages(site) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            while sock.recv(1 << 18) and not site.over:
                pass
            site.answered += 1


@attack("200 scrapers of 10,000 partitions", pages=True)
def scraped_partitions(site: Site) -> Course:
    site.create(*numbered("scraped-", 10), partitions=site.many(1_000))
    yield
    side_by_side(*[partial(scrape, site, "/metrics")] * site.many(200))


@attack("scrapers of 200k offsets of groups", pages=True)
def scraped_groups(site: Site) -> Course:
    site.create("read", partitions=site.many(1_000))
    rows = [
        offsets_.OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
        for number in range(site.many(1_000))
    ]
    topics = [offsets_.OffsetCommitRequestTopic(name="read", partitions=rows)]
    with site.client() as client:
        for number in range(site.many(200)):
            client.ask(framed(OffsetCommitRequest(group_id=f"of-{number}", topics=topics), 8))
    yield
    side_by_side(*[partial(scrape, site, "/metrics")] * 16)


@attack("200 who ask for health, and 200 for what is not there", pages=True)
def health(site: Site) -> Course:
    yield
    paths = "/readyz", "/healthz", "/nothing" + "x" * 7_000, "/metrics"
    side_by_side(*[partial(scrape, site, path) for path in paths for _ in range(site.many(50))])


@attack("pages that nobody reads, and requests that never end", pages=True)
def slow(site: Site) -> Course:
    site.create(*numbered("unread-", 10), partitions=site.many(1_000))

    def begin(head: bytes) -> None:
        while not site.over:
            held: list[socket.socket] = []
            with suppress(OSError):
                for _ in range(50):
                    sock = socket.socket()
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                    sock.settimeout(5)
                    held.append(sock)
                    sock.connect(("127.0.0.1", site.door))
                    sock.sendall(head)
                    site.answered += 1
            site.rest(0.05)
            for sock in held:
                sock.close()

    yield
    side_by_side(partial(begin, b"GET /metrics HTTP/1.1\r\n\r\n"), partial(begin, b"GET /metrics" + b"x" * 8_000))
