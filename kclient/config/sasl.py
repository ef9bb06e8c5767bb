"""The settings of SASL, the same for all clients; `kclient.config.sasl_credentials` makes sense of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kclient.config.secret import Secret
from kclient.config.setting import (
    Boolean,
    Choice,
    Decimal,
    FilePath,
    List,
    Number,
    Password,
    PythonObject,
    Text,
    WebAddress,
    setting,
)

__all__ = ["CLIENT_CREDENTIALS", "JWT_RETRIEVERS", "UNSECURED", "SaslSettings"]

_CLASS = PythonObject("a Python class", strict=False)
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_INTERNALS = f"{_OAUTH}.internals.unsecured"

JWT_RETRIEVERS: dict[str, tuple[str, ...]] = {
    "DefaultJwtRetriever": ("https", "http", "file"),
    "ClientCredentialsJwtRetriever": ("https", "http"),
    "FileJwtRetriever": ("file",),
}
"""Java's classes that fetch tokens, and the schemes of the addresses that they are for."""

CLIENT_CREDENTIALS = "client-credentials"
"""The built-in callback that asks an identity provider for tokens."""
UNSECURED = "unsecured"
"""The built-in callback that makes tokens itself, for trying things out."""


@dataclass(frozen=True, kw_only=True)
class SaslSettings:
    """SASL: in effect with `security.protocol` `SASL_PLAINTEXT` and `SASL_SSL`."""

    sasl_username: str | None = setting(
        Text(sent=True),
        None,
        "User for PLAIN and SCRAM, as in librdkafka; instead of `sasl.jaas.config`.",
        own=True,
    )
    sasl_password: Secret | None = setting(
        Password(exact=True),
        None,
        "Password for PLAIN and SCRAM, as in librdkafka; instead of `sasl.jaas.config`.",
        own=True,
    )
    sasl_tokenauth: bool = setting(
        Boolean(),
        False,
        """Whether `sasl.username` and `sasl.password` are the id and HMAC of a delegation token (KIP-48), for SCRAM: as
        `tokenauth` in `sasl.jaas.config`.""",
        own=True,
    )
    sasl_mechanism: str = setting(
        Choice(("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")),
        "GSSAPI",
        """How to authenticate. GSSAPI (Kerberos) is **not supported yet**: with SASL, one of the others has to be
        chosen.""",
    )
    sasl_jaas_config: Secret | None = setting(
        Password(),
        None,
        """User, password and the like, in Java's JAAS format, of PlainLoginModule, ScramLoginModule or
        OAuthBearerLoginModule.""",
    )
    sasl_client_callback_handler_class: object = setting(
        _CLASS, None, "Handler of SASL client callbacks.", served=False
    )
    sasl_login_callback_handler_class: Callable[[], Any] | str | None = setting(
        PythonObject(
            "a function without arguments, async or not, that returns a token: a `kclient.OAuthToken`, or the text of "
            "a JWT",
            {
                f"{_OAUTH}.OAuthBearerLoginCallbackHandler": CLIENT_CREDENTIALS,
                f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler": CLIENT_CREDENTIALS,
                f"{_INTERNALS}.OAuthBearerUnsecuredLoginCallbackHandler": UNSECURED,
            },
        ),
        None,
        """Where tokens come from (OAUTHBEARER only). Without it, from `sasl.oauthbearer.token.endpoint.url`.""",
    )
    sasl_login_class: object = setting(_CLASS, None, "Login implementation.", served=False)
    sasl_kerberos_service_name: str | None = setting(
        Text(), None, "Kerberos principal name that brokers run as.", served=False
    )
    sasl_kerberos_kinit_cmd: str = setting(
        Text(), "/usr/bin/kinit", "Path of the Kerberos kinit command.", served=False
    )
    sasl_kerberos_ticket_renew_window_factor: float = setting(
        Decimal(), 0.8, "Fraction of a Kerberos ticket's life after which it is renewed.", served=False
    )
    sasl_kerberos_ticket_renew_jitter: float = setting(
        Decimal(), 0.05, "Random part of the Kerberos renewal time.", served=False
    )
    sasl_kerberos_min_time_before_relogin: int = setting(
        Number(high=2**63 - 1), 60_000, "Milliseconds between Kerberos logins, at least.", served=False
    )
    sasl_login_refresh_window_factor: float = setting(
        Decimal(0.5, 1.0), 0.8, "Fraction of a token's life after which it is replaced."
    )
    sasl_login_refresh_window_jitter: float = setting(
        Decimal(0.0, 0.25), 0.05, "Random part of that time, as a fraction of the token's life."
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        Number(0, 900), 60, "Seconds between replacements of a token, at least."
    )
    sasl_login_refresh_buffer_seconds: int = setting(
        Number(0, 3600), 300, "Seconds before its end by which a token is replaced."
    )
    sasl_login_connect_timeout_ms: int | None = setting(
        Number(),
        None,
        """How long the identity provider may take to accept a connection; unset, 10 seconds. A token callback has this
        and `sasl.login.read.timeout.ms` together, and 60 seconds if neither is set.""",
    )
    sasl_login_read_timeout_ms: int | None = setting(
        Number(),
        None,
        """How long the identity provider may take to answer; unset, 10 seconds. For a token callback see
        `sasl.login.connect.timeout.ms`.""",
    )
    sasl_login_retry_backoff_ms: int = setting(
        Number(high=2**63 - 1),
        100,
        """Delay before the first new attempt to fetch a token from an identity provider or a file; it doubles with
        each failure.""",
    )
    sasl_login_retry_backoff_max_ms: int = setting(
        Number(high=2**63 - 1),
        10_000,
        """Time for all attempts to fetch a token from an identity provider or a file, as the Java client counts it;
        after that the call fails.""",
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        WebAddress(),
        None,
        "Where tokens are fetched from (client credentials, `https:`), or the `file:` that holds one.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        Text(), None, "Where the identity provider's keys are fetched from.", served=False
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        Number(high=2**63 - 1), 3_600_000, "Milliseconds between refreshes of the keys.", served=False
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        Number(high=2**63 - 1), 100, "Milliseconds before the first new attempt to fetch keys.", served=False
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        Number(high=2**63 - 1), 10_000, "Milliseconds between attempts to fetch keys, at most.", served=False
    )
    sasl_oauthbearer_jwt_retriever_class: str = setting(
        _CLASS,
        f"{_OAUTH}.DefaultJwtRetriever",
        "What fetches tokens; `sasl.oauthbearer.token.endpoint.url` alone says it all.",
        served_values=tuple(f"{_OAUTH}.{name}" for name in JWT_RETRIEVERS),
    )
    sasl_oauthbearer_jwt_validator_class: object = setting(
        _CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "What checks tokens.",
        served=False,
    )
    sasl_oauthbearer_scope: str | None = setting(Text(sent=True), None, "Scope to ask for in a token.")
    sasl_oauthbearer_scope_claim_name: str = setting(Text(), "scope", "Claim that holds the scope.")
    sasl_oauthbearer_sub_claim_name: str = setting(Text(), "sub", "Claim that names the user.")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        Number(), 30, "Seconds by which clocks may differ.", served=False
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        List(), (), "Audiences that a token may be for.", served=False
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        Text(), None, "Issuer that a token must be from.", served=False
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        Boolean(), False, "Whether client id and secret are URL-encoded before they are sent (RFC 6749, 2.3.1)."
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        Text(sent=True), None, "Client id at the identity provider."
    )
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = setting(
        Password(), None, "Client secret at the identity provider."
    )
    sasl_oauthbearer_assertion_algorithm: str = setting(
        Choice(("RS256", "ES256")), "RS256", "Algorithm that signs assertions.", served=False
    )
    sasl_oauthbearer_assertion_claim_aud: str | None = setting(Text(), None, "Audience of assertions.", served=False)
    sasl_oauthbearer_assertion_claim_exp_seconds: int = setting(
        Number(0, 86_400), 300, "Life of assertions, in seconds.", served=False
    )
    sasl_oauthbearer_assertion_claim_iss: str | None = setting(Text(), None, "Issuer of assertions.", served=False)
    sasl_oauthbearer_assertion_claim_jti_include: bool = setting(
        Boolean(), False, "Whether assertions carry an id.", served=False
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = setting(
        Number(0, 3600), 60, "Seconds before now from which assertions are valid.", served=False
    )
    sasl_oauthbearer_assertion_claim_sub: str | None = setting(Text(), None, "Subject of assertions.", served=False)
    sasl_oauthbearer_assertion_file: str | None = setting(
        FilePath(), None, "File with a ready assertion.", served=False
    )
    sasl_oauthbearer_assertion_private_key_file: str | None = setting(
        FilePath(), None, "File with the key that signs assertions.", served=False
    )
    sasl_oauthbearer_assertion_private_key_passphrase: Secret | None = setting(
        Password(), None, "Passphrase of that key.", served=False
    )
    sasl_oauthbearer_assertion_template_file: str | None = setting(
        FilePath(), None, "File with a template of assertions.", served=False
    )
