"""The settings of security, the same for all clients; those of TLS are in `kclient.config.tls`."""

from __future__ import annotations

import dataclasses
import ssl
from dataclasses import dataclass
from functools import cached_property

from kclient.config.secret import Secret
from kclient.config.setting import Boolean, Choice, Decimal, List, Number, Password, PythonObject, Text, setting
from kclient.config.tls import TlsSettings
from kclient.config.tls_context import make_context

__all__ = ["SecuritySettings"]

_CLASS = PythonObject("a Python class", strict=False)


@dataclass(frozen=True, kw_only=True)
class SecuritySettings(TlsSettings):
    """What `security.protocol` turns on: TLS (see `TlsSettings`) and SASL."""

    security_protocol: str = setting(
        Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
        "PLAINTEXT",
        "How brokers are talked to: in the clear, by TLS, with SASL.",
        served_values=("PLAINTEXT",),
    )
    security_providers: str | None = setting(
        Text(), None, "Java security providers; without meaning in Python.", served=False
    )
    # --- SASL
    sasl_mechanism: str = setting(Text(), "GSSAPI", "SASL mechanism.", served=False)
    sasl_jaas_config: Secret | None = setting(
        Password(), None, "User, password and the like, in Java's JAAS format.", served=False
    )
    sasl_client_callback_handler_class: object = setting(
        _CLASS, None, "Handler of SASL client callbacks.", served=False
    )
    sasl_login_callback_handler_class: object = setting(_CLASS, None, "Handler of SASL login callbacks.", served=False)
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
        Decimal(0.5, 1.0), 0.8, "Fraction of a credential's life after which it is refreshed.", served=False
    )
    sasl_login_refresh_window_jitter: float = setting(
        Decimal(0.0, 0.25), 0.05, "Random part of the refresh time.", served=False
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        Number(0, 900), 60, "Seconds between refreshes of a credential, at least.", served=False
    )
    sasl_login_refresh_buffer_seconds: int = setting(
        Number(0, 3600), 300, "Seconds before its end by which a credential is refreshed.", served=False
    )
    sasl_login_connect_timeout_ms: int | None = setting(
        Number(), None, "Milliseconds to connect to the identity provider.", served=False
    )
    sasl_login_read_timeout_ms: int | None = setting(
        Number(), None, "Milliseconds to read from the identity provider.", served=False
    )
    sasl_login_retry_backoff_ms: int = setting(
        Number(high=2**63 - 1), 100, "Milliseconds before the first new attempt to log in.", served=False
    )
    sasl_login_retry_backoff_max_ms: int = setting(
        Number(high=2**63 - 1), 10_000, "Milliseconds between attempts to log in, at most.", served=False
    )
    # --- OAUTHBEARER
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        Text(), None, "Where tokens are fetched from.", served=False
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
    sasl_oauthbearer_jwt_retriever_class: object = setting(
        _CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "What fetches tokens.",
        served=False,
    )
    sasl_oauthbearer_jwt_validator_class: object = setting(
        _CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "What checks tokens.",
        served=False,
    )
    sasl_oauthbearer_scope: str | None = setting(Text(), None, "Scope asked for in a token.", served=False)
    sasl_oauthbearer_scope_claim_name: str = setting(Text(), "scope", "Claim that holds the scope.", served=False)
    sasl_oauthbearer_sub_claim_name: str = setting(Text(), "sub", "Claim that holds the subject.", served=False)
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
        Boolean(), False, "Whether client id and secret are URL-encoded.", served=False
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        Text(), None, "Client id at the identity provider.", served=False
    )
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = setting(
        Password(), None, "Client secret at the identity provider.", served=False
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
    sasl_oauthbearer_assertion_file: str | None = setting(Text(), None, "File with a ready assertion.", served=False)
    sasl_oauthbearer_assertion_private_key_file: str | None = setting(
        Text(), None, "File with the key that signs assertions.", served=False
    )
    sasl_oauthbearer_assertion_private_key_passphrase: Secret | None = setting(
        Password(), None, "Passphrase of that key.", served=False
    )
    sasl_oauthbearer_assertion_template_file: str | None = setting(
        Text(), None, "File with a template of assertions.", served=False
    )

    @cached_property
    def tls_context(self) -> ssl.SSLContext | None:
        """What connections are encrypted with; None if `security.protocol` says that they are not.

        Raises:
            ConfigError: If a file cannot be read, a certificate or key makes no sense, or settings contradict.
            NotYetSupportedError: For key stores in Java's formats, and what Python's `ssl` cannot do.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(TlsSettings)}
        given = [name.replace("_", ".") for name, value in defaults.items() if getattr(self, name) != value]
        return make_context(self, given)
