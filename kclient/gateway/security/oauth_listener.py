"""How a listener checks tokens of OAUTHBEARER, as Kafka's settings say it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kclient.arguments import shown
from kclient.config.jaas import parse_jaas
from kclient.config.secret import Url
from kclient.errors import ConfigError
from kclient.gateway.security.json_web_keys import check_can_verify
from kclient.gateway.security.key_source import KeySource, KeySourceSettings
from kclient.gateway.security.token_verifier import TokenRules, TokenVerifier
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_logins import BROKER_SETTINGS_OF_OAUTH, CALLBACK_HANDLER
from kclient.net.sasl.unsecured import accept_unsecured

if TYPE_CHECKING:
    from kclient.config.jaas import JaasEntry
    from kclient.gateway.config import BrokerConfig
    from kclient.net.sasl.oauthbearer import TokenCheck

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

OAUTHBEARER: Final = "OAUTHBEARER"
_PREFIX: Final = "oauthbearer."
_JAAS: Final = f"{_PREFIX}sasl.jaas.config"
_NAMES: Final = tuple(setting.name for setting in BROKER_SETTINGS_OF_OAUTH)
_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_OWN_NAMES: Final = frozenset({*_NAMES, *(_PREFIX + each for each in _NAMES)})
OAUTH_SETTINGS: Final = frozenset({_JAAS, f"{_PREFIX}{CALLBACK_HANDLER}", *_OWN_NAMES})
"""Those that can be given for one listener."""

_SIGNED: Final = "OAuthBearerValidatorCallbackHandler"
_UNSECURED: Final = "OAuthBearerUnsecuredValidatorCallbackHandler"
_HANDLERS: Final = {
    f"org.apache.kafka.common.security.oauthbearer.{_SIGNED}": _SIGNED,
    f"org.apache.kafka.common.security.oauthbearer.secured.{_SIGNED}": _SIGNED,  # before Kafka 4
    f"org.apache.kafka.common.security.oauthbearer.internals.unsecured.{_UNSECURED}": _UNSECURED,
}
_PRINCIPAL_CLAIM: Final = "unsecuredValidatorPrincipalClaimName"
_SCOPE_CLAIM: Final = "unsecuredValidatorScopeClaimName"
_REQUIRED_SCOPE: Final = "unsecuredValidatorRequiredScope"
_CLOCK_SKEW: Final = "unsecuredValidatorAllowableClockSkewMs"


@dataclass(frozen=True, slots=True)
class ListenerOAuth:
    """How a listener checks tokens."""

    check: TokenCheck
    source: KeySource | None
    """Where the keys come from; None where tokens are not signed."""


def oauth_of(config: BrokerConfig, listener: str, *, offered: bool) -> ListenerOAuth | None:
    """How a listener with SASL checks tokens; None where it takes none.

    Args:
        config: The broker's settings.
        listener: The listener's name.
        offered: Whether it offers OAUTHBEARER.

    Raises:
        ConfigError: The settings make no sense, or one is missing.
        MissingExtraError: What checks signatures is not installed.
    """
    own = f"listener.name.{listener.lower()}."
    if not offered:
        _check_none(config, own, OAUTH_SETTINGS, f"the listener {listener} does not offer {OAUTHBEARER}")
        return None
    handler = _text(config, f"{own}{_PREFIX}{CALLBACK_HANDLER}")
    kind = _SIGNED if handler is None else _HANDLERS.get(handler.strip())
    if kind is None:
        raise ConfigError(f"{own}{_PREFIX}{CALLBACK_HANDLER} is none of {', '.join(_HANDLERS)}")
    entry = _login_module(config, own)
    if kind == _UNSECURED:
        _check_none(config, own, _OWN_NAMES, f"the listener {listener} takes tokens without a signature")
        logger.warning(
            "the listener %s takes tokens that nobody has signed: whoever reaches it can be anybody. This is for "
            "trying things out", listener,
        )  # fmt: skip
        return ListenerOAuth(_unsecured(entry, own), None)
    value = partial(_value, config, own)
    url = value(_URL)
    if not url:
        raise ConfigError(
            f"the listener {listener} offers {OAUTHBEARER}, and has no keys to check tokens with: set {_URL} to "
            "https://... or file:///..."
        )
    if entry is not None and any(name.startswith("unsecuredValidator") for name in entry.options):
        raise ConfigError(f"{own}{_JAAS} is about tokens without a signature, and the listener takes only signed ones")
    check_can_verify()
    source = KeySource(
        KeySourceSettings(
            url=Url(url),
            refresh=value("sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
            retry=value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms") / 1000,
            retry_max=value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms") / 1000,
        )
    )
    rules = TokenRules(
        audiences=value("sasl.oauthbearer.expected.audience") or (),
        issuer=value("sasl.oauthbearer.expected.issuer") or None,
        clock_skew_s=value("sasl.oauthbearer.clock.skew.seconds"),
        scope_claim=value("sasl.oauthbearer.scope.claim.name"),
        subject_claim=value("sasl.oauthbearer.sub.claim.name"),
    )
    return ListenerOAuth(TokenVerifier(rules, lambda: source.keys, source.missed), source)


def check_oauth_is_for(config: BrokerConfig, *, offered: bool) -> None:
    """Who says how tokens are checked has a listener that takes them. Raises `ConfigError`."""
    for name in () if offered else _NAMES:
        if config.given(name) is not None:
            raise ConfigError(
                f"{name} has no effect: no listener offers {OAUTHBEARER}; name it in sasl.enabled.mechanisms, and "
                "give listeners one with SASL_SSL"
            )


def _check_none(config: BrokerConfig, own: str, names: frozenset[str], why: str) -> None:
    """Refuse settings of a listener that it does not obey."""
    for name in config.of_listeners:
        if name.startswith(own) and name.removeprefix(own) in names:
            raise ConfigError(f"{name} has no effect: {why}")


def _text(config: BrokerConfig, name: str) -> str | None:
    found = config.of_listeners.get(name)
    return None if found is None else found.reveal()


def _value(config: BrokerConfig, own: str, name: str) -> Any:
    """What a setting is for the listener: that of its mechanism, else its own, else that of all."""
    for each in (f"{own}{_PREFIX}{name}", own + name):
        text = _text(config, each)
        if text is None:
            continue
        try:
            return BROKER_SETTINGS[name].parse(text)
        except ConfigError:
            raise ConfigError(f"{each}: expected {BROKER_SETTINGS[name].kind.text}, not {shown(text)}") from None
    return config.get(name)


def _login_module(config: BrokerConfig, own: str) -> JaasEntry | None:
    text = _text(config, own + _JAAS)
    if text is None:
        return None
    entry = parse_jaas(text)
    if entry.module != "OAuthBearerLoginModule":
        raise ConfigError(f"{own}{_JAAS} names another login module than OAuthBearerLoginModule")
    # options that begin with unsecuredLogin are those of a broker that calls others, which gateways do not
    known = (_PRINCIPAL_CLAIM, _SCOPE_CLAIM, _REQUIRED_SCOPE, _CLOCK_SKEW)
    if any(name not in known and not name.startswith("unsecuredLogin") for name in entry.options):
        raise ConfigError(f"{own}{_JAAS} has an option that is none of {', '.join(known)}")
    return entry


def _unsecured(entry: JaasEntry | None, own: str) -> TokenCheck:
    options = {} if entry is None else {name: each.reveal() for name, each in entry.options.items()}
    try:
        skew_ms = int(options.get(_CLOCK_SKEW) or 0)
    except ValueError:
        skew_ms = -1
    if skew_ms < 0:
        raise ConfigError(f"{own}{_JAAS}: {_CLOCK_SKEW} is a number of milliseconds")
    return accept_unsecured(
        principal_claim=options.get(_PRINCIPAL_CLAIM) or "sub",
        scope_claim=options.get(_SCOPE_CLAIM) or "scope",
        required_scope=options.get(_REQUIRED_SCOPE) or None,
        clock_skew=skew_ms / 1000,
    )
