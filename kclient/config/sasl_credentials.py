"""What a client authenticates with, found out from its settings; checked as a whole, before any connection is made."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from kclient.config.jaas import JaasEntry, parse_jaas
from kclient.config.sasl import CLIENT_CREDENTIALS, JWT_RETRIEVERS, UNSECURED, SaslSettings
from kclient.config.secret import Secret, Url, check_encodable
from kclient.errors import ConfigError, NotYetSupportedError

__all__ = [
    "CALLBACK_TIMEOUT",
    "EXTENSION_NAME",
    "EXTENSION_VALUE",
    "ClientCredentials",
    "OAuthCredentials",
    "PasswordCredentials",
    "UnsecuredToken",
    "check_address",
    "check_extensions",
    "check_token_source",
    "resolve_credentials",
]

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("username", "password"),
    "ScramLoginModule": ("username", "password", "tokenauth"),
    "OAuthBearerLoginModule": (
        "clientId",
        "clientSecret",
        "scope",
        "unsecuredLoginPrincipalClaimName",
        "unsecuredLoginLifetimeSeconds",
        "unsecuredLoginScopeClaimName",
    ),
}
_KERBEROS: Final = frozenset({"useKeyTab", "keyTab", "storeKey", "principal", "serviceName", "useTicketCache", "debug"})
_SECRET_PARAMETERS: Final = frozenset(
    {
        "access_token",
        "api_key",
        "apikey",
        "assertion",
        "client_assertion",
        "client_secret",
        "code",
        "key",
        "passwd",
        "password",
        "pwd",
        "refresh_token",
        "secret",
        "sig",
        "signature",
        "token",
    }
)
_PREFIXES: Final = (
    "extension_",
    "unsecuredLoginStringClaim_",
    "unsecuredLoginNumberClaim_",
    "unsecuredLoginListClaim_",
    "unsecuredLoginExtension_",
)
_WANTED = "sasl.username and sasl.password, or username and password in sasl.jaas.config"


EXTENSION_NAME: Final = r"[A-Za-z]+"
EXTENSION_VALUE: Final = r"[\x21-\x7E \t\r\n]+"
"""What names and values of SASL extensions may hold (RFC 7628), as regular expressions."""

CALLBACK_TIMEOUT: Final = 60.0
"""Seconds that a token callback may take if no setting says otherwise."""


@dataclass(frozen=True, slots=True)
class PasswordCredentials:
    """Name and password, for PLAIN and SCRAM."""

    mechanism: str
    username: str
    password: Secret
    token_auth: bool = False
    """Whether it is a delegation token (KIP-48): `sasl.tokenauth`, or `tokenauth="true"` of ScramLoginModule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """How tokens are fetched from an identity provider (RFC 6749, 4.4), or from a file; times in seconds."""

    url: str
    """Its query may hold a secret, and is not shown."""
    client_id: str = ""
    client_secret: Secret = Secret("")  # noqa: RUF009  (it does not change)
    scope: str | None = None
    urlencode: bool = False
    connect_timeout: float = 10.0
    read_timeout: float = 10.0
    retry_backoff: float = 0.1
    retry_limit: float = 10.0
    """For all attempts together: none begins later. Each takes the two timeouts together at most."""

    def __post_init__(self) -> None:
        check_encodable(
            "client id, secret, scope or URL", self.client_id, self.client_secret, self.scope or "", self.url
        )
        object.__setattr__(self, "url", Url(self.url))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredToken:
    """Tokens that the client makes itself, without a signature."""

    claims: Mapping[str, Any]
    lifetime: float = 3600.0
    principal_claim: str = "sub"
    scope_claim: str = "scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthCredentials:
    """Where the tokens of OAUTHBEARER come from."""

    source: Callable[[], Any] | ClientCredentials | UnsecuredToken
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    """SASL extensions, for tokens that bring none of their own; they may be secrets, and are not shown."""
    scope_claim: str = "scope"
    sub_claim: str = "sub"
    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period: float = 60.0
    buffer: float = 300.0
    callback_timeout: float = CALLBACK_TIMEOUT
    """Seconds that a callback may take."""

    def __post_init__(self) -> None:
        check_extensions(self.extensions)

    @property
    def mechanism(self) -> str:
        """Name of the SASL mechanism."""
        return "OAUTHBEARER"


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise `ConfigError` if SASL extensions cannot be sent; RFC 7628 says what can."""
    for name, value in extensions.items():
        if not re.fullmatch(EXTENSION_NAME, name) or name == "auth":
            raise ConfigError("a SASL extension has a name that cannot be sent: letters only, and not auth")
        if not re.fullmatch(EXTENSION_VALUE, value):
            raise ConfigError(f"the SASL extension {name} has a value that cannot be sent: printable ASCII only")


def resolve_credentials(settings: Any) -> PasswordCredentials | OAuthCredentials | None:
    """What a client authenticates with; None without SASL.

    Args:
        settings: The client's: `SaslSettings` with `security_protocol`.

    Raises:
        ConfigError: If something is missing, makes no sense, or contradicts something else.
        NotYetSupportedError: For GSSAPI.
    """
    protocol = settings.security_protocol
    if protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        _check_unused(settings, protocol)
        return None
    mechanism = settings.sasl_mechanism
    if mechanism == "GSSAPI":
        raise NotYetSupportedError(
            "sasl.mechanism = GSSAPI (Kerberos; as in Java it is the default) is not supported yet; set sasl.mechanism "
            "to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
        )
    entry = _jaas(settings, mechanism)
    if mechanism == "OAUTHBEARER":
        return _oauth(settings, entry)
    return _password(settings, entry, mechanism)


def _check_unused(settings: SaslSettings, protocol: str) -> None:
    """Credentials that would not be used are a mistake: most likely in `security.protocol`."""
    given = [item for item in dataclasses.fields(SaslSettings) if getattr(settings, item.name) != item.default]
    if given:
        names = ", ".join(item.name.replace("_", ".") for item in given)
        raise ConfigError(
            f"{names}: SASL is not used with security.protocol = {protocol}; set security.protocol to SASL_SSL or "
            f"SASL_PLAINTEXT, or leave {'it' if len(given) == 1 else 'them'} out"
        )


def _jaas(settings: SaslSettings, mechanism: str) -> JaasEntry:
    """The login module's options; none without `sasl.jaas.config`."""
    module = _MODULES[mechanism]
    if settings.sasl_jaas_config is None:
        return JaasEntry(module, {})
    entry = parse_jaas(settings.sasl_jaas_config.reveal())
    if entry.module != module:
        shown = entry.module if entry.module.endswith("LoginModule") else "another module"
        raise ConfigError(f"sasl.jaas.config has {shown}, but sasl.mechanism = {mechanism} needs {module}")
    prefixes = _PREFIXES if mechanism == "OAUTHBEARER" else ()
    for number, name in enumerate(entry.options, 1):
        if name not in _OPTIONS[module] and not name.startswith(prefixes):
            known = [*_OPTIONS[module], *(f"{prefix}NAME" for prefix in prefixes)]
            shown = name if _may_be_shown(name) else f"like the one in place {number} (not shown: secrets get there)"
            raise ConfigError(f"sasl.jaas.config: {module} has no option {shown}; it has {', '.join(known)}")
    return entry


def _may_be_shown(option: str) -> bool:
    """Whether it is, or was meant to be, a name; else it may be the rest of a password that was not quoted well."""
    if option.startswith(("ssl.", "sasl.")) or option in _KERBEROS:
        return True
    known = [name.lower() for names in _OPTIONS.values() for name in names]
    return bool(difflib.get_close_matches(option.lower(), known, n=1))


# --- PLAIN and SCRAM


def _password(settings: SaslSettings, entry: JaasEntry, mechanism: str) -> PasswordCredentials:
    if settings.sasl_login_callback_handler_class is not None:
        raise ConfigError(f"sasl.login.callback.handler.class is for OAUTHBEARER, not for {mechanism}")
    if settings.sasl_jaas_config is not None and (settings.sasl_username or settings.sasl_password):
        raise ConfigError("sasl.jaas.config and sasl.username, sasl.password say the same: give one of the two")
    if settings.sasl_tokenauth and settings.sasl_jaas_config is not None:
        raise ConfigError('sasl.tokenauth belongs to sasl.username; in sasl.jaas.config it is tokenauth="true"')
    if settings.sasl_tokenauth and mechanism == "PLAIN":
        raise ConfigError("sasl.tokenauth is for SCRAM-SHA-256 and SCRAM-SHA-512: PLAIN takes no delegation tokens")
    username = settings.sasl_username or _reveal(entry, "username")
    password = settings.sasl_password or entry.options.get("password")
    if not username or not password:
        raise ConfigError(f"sasl.mechanism = {mechanism} needs {_WANTED}")
    if "\0" in username or (mechanism == "PLAIN" and "\0" in password.reveal()):
        raise ConfigError(f"SASL {mechanism} cannot send a zero character in name or password")
    by_id = (_reveal(entry, "tokenauth") or "false").lower()
    if by_id not in ("true", "false"):
        raise ConfigError("sasl.jaas.config: tokenauth is true or false")
    return PasswordCredentials(mechanism, username, password, token_auth=settings.sasl_tokenauth or by_id == "true")


def _reveal(entry: JaasEntry, name: str) -> str | None:
    found = entry.options.get(name)
    return None if found is None else found.reveal()


# --- OAUTHBEARER


def _oauth(settings: SaslSettings, entry: JaasEntry) -> OAuthCredentials:
    if settings.sasl_username or settings.sasl_password:
        raise ConfigError("sasl.username and sasl.password are for PLAIN and SCRAM, not for OAUTHBEARER")
    if settings.sasl_tokenauth:
        raise ConfigError("sasl.tokenauth is for SCRAM-SHA-256 and SCRAM-SHA-512, not for OAUTHBEARER")
    return OAuthCredentials(
        source=_source(settings, entry),
        extensions=_prefixed(entry, "extension_") | _prefixed(entry, "unsecuredLoginExtension_"),
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
        sub_claim=settings.sasl_oauthbearer_sub_claim_name,
        window_factor=settings.sasl_login_refresh_window_factor,
        window_jitter=settings.sasl_login_refresh_window_jitter,
        min_period=settings.sasl_login_refresh_min_period_seconds,
        buffer=settings.sasl_login_refresh_buffer_seconds,
        callback_timeout=_callback_timeout(settings),
    )


def _callback_timeout(settings: SaslSettings) -> float:
    """Where connecting ends and waiting begins only the callback knows: the two count together."""
    connect, read = settings.sasl_login_connect_timeout_ms, settings.sasl_login_read_timeout_ms
    return CALLBACK_TIMEOUT if connect is None and read is None else _seconds(connect) + _seconds(read)


def _source(settings: SaslSettings, entry: JaasEntry) -> Callable[[], Any] | ClientCredentials | UnsecuredToken:
    handler = settings.sasl_login_callback_handler_class
    url = settings.sasl_oauthbearer_token_endpoint_url
    unsecured = [name for name in entry.options if name.startswith("unsecuredLogin")]
    if handler is not None and not isinstance(handler, str):
        return _callback(handler, settings, entry)
    if url:
        if unsecured or handler == UNSECURED:
            raise ConfigError("sasl.oauthbearer.token.endpoint.url and unsecured tokens contradict each other")
        return _client_credentials(settings, entry, url)
    if unsecured and handler != CLIENT_CREDENTIALS:
        return _unsecured(entry)
    raise ConfigError(
        "sasl.mechanism = OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url, where tokens are fetched, or "
        "sasl.login.callback.handler.class, a function that returns one"
    )


def _callback(handler: Callable[[], Any], settings: SaslSettings, entry: JaasEntry) -> Callable[[], Any]:
    if settings.sasl_oauthbearer_token_endpoint_url or entry.options:
        raise ConfigError(
            "sasl.login.callback.handler.class gives the tokens: sasl.oauthbearer.token.endpoint.url and the options "
            "of sasl.jaas.config would not be used"
        )
    if isinstance(handler, type) and not _takes_no_arguments(handler):
        raise ConfigError(
            "sasl.login.callback.handler.class: a class is made without arguments, and this one needs some; give an "
            "object of it"
        )
    made = handler() if isinstance(handler, type) else handler
    check_token_source(made, "sasl.login.callback.handler.class")
    return made


def _takes_no_arguments(function: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments; where Python cannot tell, it may be so."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C
        return True
    try:
        signature.bind()
    except TypeError:
        return False
    return True


def check_token_source(source: object, what: str) -> None:
    """Refuse what cannot give tokens, before a connection needs one.

    Args:
        source: What was given.
        what: What it was given as, for the message.

    Raises:
        ConfigError: If it cannot be called without arguments.
    """
    expected = "expected a function without arguments: def token() -> kclient.OAuthToken | str, or async def"
    if not callable(source):
        raise ConfigError(f"{what} is not a function: {expected}")
    if not _takes_no_arguments(source):
        raise ConfigError(f"{what} cannot be called without arguments: {expected}")


def _client_credentials(settings: SaslSettings, entry: JaasEntry, url: str) -> ClientCredentials:
    check_address(url)
    scheme = urlsplit(url).scheme
    if scheme not in ("https", "http", "file"):
        raise ConfigError("sasl.oauthbearer.token.endpoint.url: expected an https: address, http: or file:")
    retriever = settings.sasl_oauthbearer_jwt_retriever_class.rpartition(".")[2]
    if scheme not in JWT_RETRIEVERS[retriever]:
        raise ConfigError(
            f"sasl.oauthbearer.jwt.retriever.class = {retriever} does not go with a {scheme}: address in "
            "sasl.oauthbearer.token.endpoint.url"
        )
    client_id = settings.sasl_oauthbearer_client_credentials_client_id or _reveal(entry, "clientId") or ""
    secret = settings.sasl_oauthbearer_client_credentials_client_secret or entry.options.get("clientSecret")
    if scheme != "file" and not (client_id and secret):
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and "
            "sasl.oauthbearer.client.credentials.client.secret, or clientId and clientSecret in sasl.jaas.config"
        )
    return ClientCredentials(
        url=url,
        client_id=client_id,
        client_secret=secret or Secret(""),
        scope=settings.sasl_oauthbearer_scope or _reveal(entry, "scope"),
        urlencode=settings.sasl_oauthbearer_header_urlencode,
        connect_timeout=_seconds(settings.sasl_login_connect_timeout_ms),
        read_timeout=_seconds(settings.sasl_login_read_timeout_ms),
        retry_backoff=settings.sasl_login_retry_backoff_ms / 1000,
        retry_limit=settings.sasl_login_retry_backoff_max_ms / 1000,
    )


def check_address(url: str) -> None:
    """Refuse secrets in the address that tokens are fetched from: httpx logs it, with its query.

    Args:
        url: The address.

    Raises:
        ConfigError: If it has user or password, or a query with a parameter that is a secret by its name.
    """
    where = "sasl.oauthbearer.token.endpoint.url"
    try:
        parts = urlsplit(url)
        names = {name.lower().replace("-", "_") for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    except ValueError:
        raise ConfigError(f"{where} is not a valid address") from None
    if "@" in parts.netloc:
        raise ConfigError(f"{where}: user and password do not belong into the address")
    if found := sorted(names & _SECRET_PARAMETERS):
        raise ConfigError(
            f"{where}: {', '.join(found)} does not belong into the address, which is logged; client id and secret go "
            "into sasl.oauthbearer.client.credentials.client.id and .client.secret"
        )


def _seconds(milliseconds: int | None) -> float:
    return 10.0 if milliseconds is None else milliseconds / 1000


def _unsecured(entry: JaasEntry) -> UnsecuredToken:
    principal = _reveal(entry, "unsecuredLoginPrincipalClaimName") or "sub"
    claims: dict[str, Any] = dict(_prefixed(entry, "unsecuredLoginStringClaim_"))
    try:
        claims |= {name: float(text) for name, text in _prefixed(entry, "unsecuredLoginNumberClaim_").items()}
        lifetime = float(_reveal(entry, "unsecuredLoginLifetimeSeconds") or 3600)
    except ValueError:
        raise ConfigError("sasl.jaas.config: unsecuredLoginNumberClaim_ and -LifetimeSeconds take numbers") from None
    # the first character of a list parts its items
    lists = _prefixed(entry, "unsecuredLoginListClaim_").items()
    claims |= {name: text[1:].split(text[0]) for name, text in lists if text}
    if not claims.get(principal):
        raise ConfigError(f"sasl.jaas.config: unsecured tokens need unsecuredLoginStringClaim_{principal}, the user")
    return UnsecuredToken(
        claims=claims,
        lifetime=lifetime,
        principal_claim=principal,
        scope_claim=_reveal(entry, "unsecuredLoginScopeClaimName") or "scope",
    )


def _prefixed(entry: JaasEntry, prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value.reveal() for name, value in entry.options.items() if name.startswith(prefix)}
