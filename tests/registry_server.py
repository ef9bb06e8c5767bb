"""A schema registry over HTTP, in the process: what Confluent's answers, as far as readers ask."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class RegistryServer:
    """Its schemas, and what it was asked."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    serialized: dict[int, str] = field(default_factory=dict)
    """Of Protobuf: descriptors in base64, by id."""
    versions: dict[str, list[int]] = field(default_factory=dict)
    """Ids by subject."""
    asked: list[str] = field(default_factory=list)
    authorization: str | None = None
    """What it wants to be told, if it does."""
    faults: list[tuple[int, bytes]] = field(default_factory=list)
    """What it answers first."""

    def register(
        self, subject: str, text: Any, kind: str = "AVRO", references: Any = (), serialized: str | None = None
    ) -> int:
        """The id of a new version."""
        schema_id = len(self.schemas) + 1
        found = {"schema": text if isinstance(text, str) else json.dumps(text)}
        if kind != "AVRO":  # which is left out
            found["schemaType"] = kind
        if references:
            names = ("name", "subject", "version")
            found["references"] = [dict(zip(names, each, strict=True)) for each in references]  # type: ignore[assignment]
        self.schemas[schema_id] = found
        if serialized is not None:
            self.serialized[schema_id] = serialized
        self.versions.setdefault(subject, []).append(schema_id)
        return schema_id

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.faults:
            return self.faults.pop(0)
        if authorization != self.authorization:
            return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        parts = urlsplit(path)
        steps = [unquote(each) for each in parts.path.strip("/").split("/")]
        form = parse_qs(parts.query).get("format", [""])[0]
        try:
            if steps[:2] == ["schemas", "ids"]:
                return self._found(int(steps[2]), form)
            _, subject, _, version = steps
            ids = self.versions[subject]
            number = len(ids) if version == "latest" else int(version)
            schema_id = ids[number - 1]
            return self._found(schema_id, form, subject=subject, version=number, id=schema_id)
        except (LookupError, ValueError):
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'

    def _found(self, schema_id: int, form: str, **more: Any) -> tuple[int, bytes]:
        found = {**self.schemas[schema_id], **more}
        if form == "serialized":
            found["schema"] = self.serialized[schema_id]
        return 200, json.dumps(found).encode()


@contextmanager
def serving_registry() -> Iterator[RegistryServer]:
    """For the length of the block."""
    server = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = server.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def framed(schema_id: int, payload: bytes) -> bytes:
    """A value as serializers write it."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload
