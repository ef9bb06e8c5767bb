"""An identity provider over HTTP that gives tokens for client credentials."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.seen.append((self.headers["authorization"], body))
        failed = len(self.server.seen) <= self.server.failures
        data = b"" if failed else json.dumps({"access_token": self.server.issue()}).encode()
        self.send_response(self.server.status if failed else 200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def identity_provider(issue: Callable[[], str], *, failures: int = 0) -> Iterator[Any]:
    """A server: `url` is its token endpoint, `seen` what it was asked (Authorization, body), `status` how it fails.

    Args:
        issue: Makes a token.
        failures: How many requests it fails first.
    """
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.seen, server.issue, server.failures, server.status = [], issue, failures, 503
    server.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
