"""Asks a schema registry; blocking, with what was found kept."""

from __future__ import annotations

import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlsplit, urlunsplit

from kclient.arguments import shown
from kclient.errors import ConfigError, MissingExtraError, SchemaRegistryError
from kclient.schema_registry.schema import AVRO, RegisteredSchema, SchemaReference

if TYPE_CHECKING:
    import httpx

__all__ = ["SchemaRegistry"]

logger: logging.Logger = logging.getLogger("kclient.schema_registry")

_ATTEMPTS: Final = 4
_BACKOFF_S: Final = 0.2
"""Seconds before the second attempt; twice as many before each further one."""
_ANSWER_LIMIT: Final = 16 << 20
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
"""After these answers it is asked again."""
_TLS_SIGNS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "ssl.ca.location",
    "CERTIFICATE_REQUIRED": "ssl.certificate.location",
    "HANDSHAKE_FAILURE": "ssl.certificate.location",
}
"""Which setting an error of OpenSSL points to."""
_SETTINGS: Final = {
    "url": "addresses, separated by commas",
    "basic.auth.user.info": "USER:PASSWORD",
    "bearer.auth.token": "a token",
    "ssl.ca.location": "a file of certificates",
    "ssl.certificate.location": "a file with a certificate",
    "ssl.key.location": "a file with its key",
    "timeout": "seconds",
}


class SchemaRegistry:
    """A schema registry. Any thread may use it; close it, or use it as a context manager.

    Args:
        settings: Its address, or its settings by the names of confluent-kafka's client: `url` (several, separated by
            commas, are tried in turn), `basic.auth.user.info` (`USER:PASSWORD`), `bearer.auth.token`,
            `ssl.ca.location`, `ssl.certificate.location`, `ssl.key.location` (paths of PEM files), and `timeout`
            (seconds that an answer may take; 10 by default).

    Raises:
        ConfigError: A setting is unknown, or has a value that cannot be used.
    """

    def __init__(self, settings: str | Mapping[str, str]) -> None:
        self.settings: dict[str, str] = _checked(settings)
        self._urls = [_address(each.strip()) for each in self.settings["url"].split(",")]
        self._timeout = _seconds(self.settings.get("timeout", "10"))
        self._lock = threading.Lock()
        self._connections: _Connections | None = None
        self._schemas: dict[tuple[int, str], RegisteredSchema] = {}
        self._versions: dict[tuple[str, int, str], RegisteredSchema] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaRegistry, (self.settings,)  # it goes to Spark's workers

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.settings['url']!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections, those in use when they are done; it may be used again, and makes new ones then."""
        with self._lock:
            connections, self._connections = self._connections, None
            if connections is None or connections.process != os.getpid():
                return
            connections.closing = True
            if connections.users:  # the last of them closes it
                return
        connections.client.close()

    def schema(self, schema_id: int, *, form: str = "") -> RegisteredSchema:
        """The schema with an id; it is asked for once.

        Args:
            schema_id: Its id.
            form: In which it is wanted, as `serialized` of Protobuf; as it was registered by default.

        Raises:
            SchemaRegistryError: There is none, or the registry cannot be asked.
            MissingExtraError: httpx is not installed.
        """
        found = self._schemas.get((schema_id, form))
        if found is None:
            answer = self._ask(f"/schemas/ids/{schema_id}", form, f"the schema {schema_id}")
            found = self._schemas[schema_id, form] = _schema(answer, schema_id)
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest schema of a subject, which is asked for each time. Raises as `schema`."""
        answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", "", f"the subject {shown(subject)}")
        return _schema(answer, answer.get("id"))

    def version(self, subject: str, version: int, *, form: str = "") -> RegisteredSchema:
        """A version of a subject; it is asked for once. Raises as `schema`."""
        key = (subject, version, form)
        found = self._versions.get(key)
        if found is None:
            what = f"version {version} of the subject {shown(subject)}"
            answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}", form, what)
            found = self._versions[key] = _schema(answer, answer.get("id"))
        return found

    def referenced(self, schema: RegisteredSchema, *, form: str = "") -> list[tuple[SchemaReference, RegisteredSchema]]:
        """All that a schema uses, and what those use; each comes after what it uses itself. Raises as `schema`."""
        found: dict[SchemaReference, RegisteredSchema] = {}
        self._gather(schema, form, found, ())
        return list(found.items())

    def _gather(
        self,
        schema: RegisteredSchema,
        form: str,
        found: dict[SchemaReference, RegisteredSchema],
        above: tuple[SchemaReference, ...],
    ) -> None:
        for each in schema.references:
            if each in above:
                raise SchemaRegistryError(f"the schema {schema.schema_id} refers to itself, by {each.subject}")
            if each not in found:
                used = self.version(each.subject, each.version, form=form)
                self._gather(used, form, found, (*above, each))
                found[each] = used

    # --- requests

    def _ask(self, path: str, form: str, what: str) -> dict[str, Any]:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtraError("httpx", "schema-registry", "A schema registry") from error
        query = f"?format={form}" if form else ""
        pause, reason = _BACKOFF_S, ""
        for attempt in range(_ATTEMPTS):
            for url in self._urls:
                try:
                    status, body = self._get(f"{url}{path}{query}")
                except (httpx.RequestError, OSError) as error:
                    reason = f"{url}: {error or type(error).__name__}"
                    reason += next((f": see {name}" for sign, name in _TLS_SIGNS.items() if sign in reason), "")
                    continue
                if status not in _BUSY:
                    return _answer(status, body, what, url)
                reason = f"{url} answered with status {status}{_told(body)}"
            if attempt + 1 < _ATTEMPTS:
                logger.info("schema registry: %s; it is asked again in %.1f s", reason, pause)
                time.sleep(pause)
                pause *= 2
        raise SchemaRegistryError(f"{what} cannot be asked for: {reason}", retriable=True)

    def _get(self, url: str) -> tuple[int, bytes]:
        import httpx

        body = bytearray()
        end = time.monotonic() + self._timeout
        with self._leased() as client, client.stream("GET", url) as response:
            for part in response.iter_bytes():
                body += part
                if len(body) > _ANSWER_LIMIT:
                    raise SchemaRegistryError(f"{url}: the answer has more than {_ANSWER_LIMIT} bytes")
                if time.monotonic() > end:  # httpx begins anew with each piece
                    raise httpx.ReadTimeout(f"the answer took more than {self._timeout} seconds")
            return response.status_code, bytes(body)

    @contextmanager
    def _leased(self) -> Iterator[httpx.Client]:
        """The client, which is not closed meanwhile: a socket closed under a thread that reads may be another's by
        the time it reads on."""
        with self._lock:
            if self._connections is None or self._connections.process != os.getpid():  # a parent's sockets are its own
                self._connections = _Connections(self._connected(), os.getpid())
            connections = self._connections
            connections.users += 1
        try:
            yield connections.client
        finally:
            with self._lock:
                connections.users -= 1
                last = connections.closing and not connections.users
            if last:
                connections.client.close()

    def _connected(self) -> httpx.Client:
        import httpx

        settings, headers, auth = self.settings, {"Accept": _ACCEPT}, None
        if "basic.auth.user.info" in settings:
            name, _, password = settings["basic.auth.user.info"].partition(":")
            auth = httpx.BasicAuth(name, password)
        elif "bearer.auth.token" in settings:
            headers["Authorization"] = f"Bearer {settings['bearer.auth.token']}"
        try:
            tls = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
            if "ssl.certificate.location" in settings:
                tls.load_cert_chain(settings["ssl.certificate.location"], settings.get("ssl.key.location"))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"ssl.*.location of the schema registry: {error}") from error
        try:
            return httpx.Client(headers=headers, auth=auth, verify=tls, timeout=self._timeout, follow_redirects=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"the proxy to the schema registry, of HTTP_PROXY and the like: {error}") from error


@dataclass(slots=True)
class _Connections:
    client: httpx.Client
    process: int
    users: int = 0
    closing: bool = False


def _checked(settings: str | Mapping[str, str]) -> dict[str, str]:
    given = {"url": settings} if isinstance(settings, str) else settings
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"a schema registry's address, or its settings, were expected, got a {type(settings).__name__}"
        )
    for name, value in given.items():
        if name not in _SETTINGS:
            raise ConfigError(f"a schema registry has no setting {shown(name)}; there are {', '.join(_SETTINGS)}")
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{name} of the schema registry: expected {_SETTINGS[name]} as text")
    if "url" not in given:
        raise ConfigError("a schema registry needs its url")
    if "basic.auth.user.info" in given and "bearer.auth.token" in given:
        raise ConfigError("of basic.auth.user.info and bearer.auth.token only one can be given")
    if "basic.auth.user.info" in given and ":" not in given["basic.auth.user.info"]:
        raise ConfigError("basic.auth.user.info is to be USER:PASSWORD")
    token = given.get("bearer.auth.token", "")
    if not all("!" <= each <= "~" for each in token):  # it would be shown where it is refused
        raise ConfigError("bearer.auth.token has a character that no header can carry, such as a line's end")
    if "ssl.key.location" in given and "ssl.certificate.location" not in given:
        raise ConfigError("ssl.key.location needs ssl.certificate.location")
    return dict(given)


def _address(url: str) -> str:
    if "@" in url:
        raise ConfigError("a user in the address would come into logs: give basic.auth.user.info")
    if "?" in url or "#" in url:
        raise ConfigError("the address of a schema registry has no ? and no #")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or any(each.isspace() for each in url):
        raise ConfigError(
            f"{shown(url)} is not the address of a schema registry: it is http:// or https://, host and port"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"timeout of the schema registry: expected seconds, got {shown(text)}")
    return seconds


def _answer(status: int, body: bytes, what: str, url: str) -> dict[str, Any]:
    if status == 404:
        raise SchemaRegistryError(f"{url} does not know {what}{_told(body)}")
    if status in {401, 403}:
        raise SchemaRegistryError(
            f"{url} does not tell {what} to us (status {status}{_told(body)}): see basic.auth.user.info and "
            "bearer.auth.token"
        )
    if status != 200:
        raise SchemaRegistryError(f"{url} answered with status {status}{_told(body)}, asked for {what}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SchemaRegistryError(f"{url} does not answer as a schema registry does: {body[:100]!r}")
    return found


def _told(body: bytes) -> str:
    """What an answer says of itself."""
    try:
        found = json.loads(body)
        return f": {str(found['message'])[:300]}"
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""


def _schema(answer: Mapping[str, Any], schema_id: Any) -> RegisteredSchema:
    text, kind, references = answer.get("schema"), answer.get("schemaType") or AVRO, answer.get("references") or ()
    try:
        if not isinstance(text, str) or not isinstance(schema_id, int) or not isinstance(kind, str):
            raise TypeError
        return RegisteredSchema(schema_id, kind, text, tuple(_reference(each) for each in references))
    except (TypeError, LookupError, ValueError):
        raise SchemaRegistryError(f"this is not the answer of a schema registry: {shown(dict(answer))}") from None


def _reference(found: Mapping[str, Any]) -> SchemaReference:
    return SchemaReference(str(found["name"]), str(found["subject"]), int(found["version"]))
