"""What is asked of a schema registry, and what comes of its answers."""

from __future__ import annotations

import multiprocessing
import pickle
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kclient.errors import ConfigError, SchemaRegistryError
from kclient.schema_registry import SchemaReference, SchemaRegistry, client
from tests.certificates import Authority
from tests.registry_server import RegistryServer, serving_registry


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "_BACKOFF_S", 0.0)
    with serving_registry() as server:
        yield server


def test_a_schema_is_asked_for_once(server: RegistryServer, registry: SchemaRegistry) -> None:
    first, second = server.register("a/b", '"int"'), server.register("a/b", '"long"')
    for _ in range(2):
        assert registry.schema(first).text == '"int"'
        assert registry.version("a/b", 1).schema_id == first
        assert registry.latest("a/b").schema_id == second
    assert server.asked.count(f"/schemas/ids/{first}") == 1
    assert server.asked.count("/subjects/a%2Fb/versions/1") == 1
    assert server.asked.count("/subjects/a%2Fb/versions/latest") == 2, "there may be a later one"


def test_what_a_schema_uses_comes_before_it(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register("c", '"int"')
    server.register("b", '"b"', references=[("C", "c", 1)])
    a = server.register("a", '"a"', references=[("B", "b", 1), ("C", "c", 1)])
    found = registry.referenced(registry.schema(a))
    assert [used for used, _ in found] == [SchemaReference("C", "c", 1), SchemaReference("B", "b", 1)]


def test_a_schema_that_uses_itself_is_refused(server: RegistryServer, registry: SchemaRegistry) -> None:
    a = server.register("a", '"a"', references=[("A", "a", 1)])
    with pytest.raises(SchemaRegistryError, match="refers to itself"):
        registry.referenced(registry.schema(a))


def test_it_is_asked_again_while_it_is_busy(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register("a", '"int"')
    server.faults = [(503, b""), (429, b"{}"), (500, b'{"message": "not now"}')]
    assert registry.latest("a").text == '"int"'
    assert len(server.asked) == 4


def test_at_last_it_is_given_up(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.faults = [(500, b'{"message": "not now"}')] * 4
    with pytest.raises(
        SchemaRegistryError, match=r"the subject 'a' cannot be asked for: .* status 500: not now"
    ) as told:
        registry.latest("a")
    assert told.value.retriable


def test_another_address_is_tried(server: RegistryServer) -> None:
    server.register("a", '"int"')
    registry = SchemaRegistry({"url": f"http://127.0.0.1:1, {server.url}/"})
    assert registry.latest("a").text == '"int"'
    registry.close()


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b'{"message": "Subject not found"}', 404, r"does not know the subject 'a': Subject not found"),
        (b"[" * 200_000, 200, "does not answer as a schema registry does"),
        (b"[" * 200_000, 404, "does not know the subject 'a'"),
        (b"<html>", 200, "does not answer as a schema registry does"),
        (b"[]", 200, "does not answer as a schema registry does"),
        (b"{}", 200, "this is not the answer of a schema registry"),
        (b'{"schema": "s", "id": 1, "references": [{}]}', 200, "this is not the answer of a schema registry"),
        (b"", 403, "see basic.auth.user.info"),
        (b"", 302, "answered with status 302"),
    ],
)
def test_what_it_answers_otherwise(
    server: RegistryServer, registry: SchemaRegistry, body: bytes, status: int, why: str
) -> None:
    server.faults = [(status, body)]
    with pytest.raises(SchemaRegistryError, match=why) as told:
        registry.latest("a")
    assert not told.value.retriable


def test_an_answer_without_end_is_not_read(
    server: RegistryServer, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ANSWER_LIMIT", 100)
    server.faults = [(200, bytes(200))]
    with pytest.raises(SchemaRegistryError, match="more than 100 bytes"):
        registry.latest("a")


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"basic.auth.user.info": "me:it's:me"}, "Basic bWU6aXQnczptZQ=="),
        ({"bearer.auth.token": "abc"}, "Bearer abc"),
    ],
)
def test_it_is_told_who_asks(server: RegistryServer, settings: dict[str, str], sent: str) -> None:
    server.register("a", '"int"')
    server.authorization = sent
    registry = SchemaRegistry({"url": server.url, **settings})
    assert registry.latest("a").text == '"int"'
    assert not any(secret in repr(registry) for secret in settings.values())
    copy = pickle.loads(pickle.dumps(registry))
    assert copy.latest("a").text == '"int"', "as on a worker of Spark"
    copy.close()
    registry.close()
    stranger = SchemaRegistry(server.url)
    with pytest.raises(SchemaRegistryError, match="status 401: Unauthorized"):
        stranger.latest("a")
    stranger.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "needs its url"),
        (5, "address, or its settings"),
        ("localhost:8081", "is not the address of a schema registry"),
        ("ftp://host", "is not the address of a schema registry"),
        ("http://host:x", "is not the address of a schema registry"),
        ("http://a:b@host", "would come into logs"),
        ("http://a:b@host:x", "would come into logs"),
        ("http://host?key=b", "has no \\? and no #"),
        ("http://ho st", "is not the address of a schema registry"),
        ([("basic.auth.user.info", "a:b")], "were expected, got a list"),
        ({"url": "http://h", "bearer.auth.token": "b\n"}, "no header can carry"),
        ({"url": "http://h", "bearer.auth.token": "\u20ac"}, "no header can carry"),
        ({"url": "http://h", "basic.auth.user.inf": "x"}, "there are url, basic.auth.user.info"),
        ({"url": "http://h", "basic.auth.user.info": "x"}, "USER:PASSWORD"),
        ({"url": "http://h", "basic.auth.user.info": "x:y", "bearer.auth.token": "z"}, "only one"),
        ({"url": "http://h", "timeout": "soon"}, "expected seconds"),
        ({"url": "http://h", "timeout": "nan"}, "expected seconds"),
        ({"url": "http://h", "ssl.key.location": "k"}, "needs ssl.certificate.location"),
        ({"url": "http://h", "ssl.ca.location": 7}, "a file of certificates as text"),
    ],
)
def test_settings_that_cannot_be_used(settings, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as told:
        SchemaRegistry(settings)
    assert "a:b" not in str(told.value)


def test_certificates_that_are_not_there() -> None:
    registry = SchemaRegistry({"url": "https://127.0.0.1:1", "ssl.ca.location": "/nowhere.pem"})
    with pytest.raises(ConfigError, match=r"ssl\.\*\.location"):
        registry.latest("a")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "nonsense://x"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    try:
        import socksio  # noqa: F401  # then httpx can
    except ModuleNotFoundError:
        pass
    else:
        monkeypatch.setenv("HTTP_PROXY", "nonsense://x")
    with pytest.raises(ConfigError, match="the proxy to the schema registry"):
        SchemaRegistry("http://registry.invalid").latest("a")


@contextmanager
def answering(answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server whose answers are told by a function of its handler."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_) -> None:
            pass  # clients that trust nobody, or are not trusted

    with Server(("127.0.0.1", 0), Handler) as http:
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()


def test_certificates_of_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BACKOFF_S", 0.0)
    authority = Authority()
    trusted = tmp_path / "ca.pem"
    trusted.write_text(authority.pem)
    own = authority.issue("client@example.org").write(tmp_path / "client.pem")

    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = b'{"id": 1, "schema": "int"}'
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    context = authority.server_context(tmp_path, "127.0.0.1", client_authority=authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # a client without a certificate is told within the handshake
    with answering(answer, context) as url:
        settings = {"url": url}
        for name, path in (("ssl.ca.location", trusted), ("ssl.certificate.location", own)):
            with SchemaRegistry(settings) as registry, pytest.raises(SchemaRegistryError, match=f"see {name}"):
                registry.latest("a")
            settings[name] = str(path)
        with SchemaRegistry(settings) as registry:
            assert registry.latest("a").text == "int"


def test_an_answer_that_cannot_be_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BACKOFF_S", 0.0)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", "3")
        handler.end_headers()
        handler.wfile.write(b"abc")

    with answering(answer) as url, SchemaRegistry(url) as registry:
        with pytest.raises(SchemaRegistryError, match="cannot be asked for") as told:
            registry.latest("a")
        assert told.value.retriable


def test_an_answer_that_drips_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ATTEMPTS", 1)
    done = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while not done.wait(0.02):
                handler.wfile.write(b" ")
        except OSError:
            pass

    with answering(answer) as url, SchemaRegistry({"url": url, "timeout": "0.2"}) as registry:
        try:
            with pytest.raises(SchemaRegistryError, match=r"took more than 0\.2 seconds"):
                registry.latest("a")
        finally:
            done.set()


def test_it_is_closed_while_it_asks() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        go_on.wait(10)
        body = b'{"id": 1, "schema": "int"}'
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with answering(answer) as url:
        registry = SchemaRegistry(url)
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(registry.latest("a").text))
        thread.start()
        assert asked.wait(10)
        asked.clear()
        registry.close()
        go_on.set()
        thread.join(10)
        assert found == ["int"]
        assert registry.latest("b").text == "int", "over new connections"
        registry.close()


def _ask(registry: SchemaRegistry, answers) -> None:
    answers.put((registry.latest("a").text, registry._connections.process))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads, and a fork
def test_a_child_has_connections_of_its_own(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.register("a", '"int"')
    registry.latest("a")
    forked = multiprocessing.get_context("fork")
    answers = forked.Queue()
    child = forked.Process(target=_ask, args=(registry, answers))
    child.start()
    assert answers.get(timeout=20) == ('"int"', child.pid)
    child.join(20)
    assert registry.latest("a").text == '"int"'
