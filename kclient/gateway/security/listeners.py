"""The listeners of a gateway, as Kafka's settings name them: where each accepts clients, and how these come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kclient.arguments import shown
from kclient.config.jaas import parse_jaas
from kclient.errors import ConfigError, KafkaError, NotYetSupportedError
from kclient.gateway.security.oauth_listener import (
    OAUTH_SETTINGS,
    OAUTHBEARER,
    ListenerOAuth,
    check_oauth_is_for,
    oauth_of,
)
from kclient.gateway.security.tls_listener import TLS_SETTINGS, ListenerTls, tls_of
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_brokers import REFUSED, WITHOUT_EFFECT
from kclient.gateway.settings_of_quotas import MAX_CREATION_RATE
from kclient.net.address import Address, parse_address
from kclient.net.sasl.plain import fixed_passwords
from kclient.net.sasl.scram import SCRAM_MECHANISMS
from kclient.records.bounds import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kclient.gateway.config import BrokerConfig
    from kclient.net.sasl.plain import PasswordCheck

LISTENERS: Final = "listeners"
CONTROLLERS: Final = "controller.listener.names"
ADVERTISED: Final = "advertised.listeners"
PROTOCOLS: Final = "listener.security.protocol.map"
MECHANISMS: Final = "sasl.enabled.mechanisms"
_REAUTHENTICATION: Final = "connections.max.reauth.ms"

_MECHANISMS: Final = ("PLAIN", *SCRAM_MECHANISMS, OAUTHBEARER)
_KNOWN: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_WITH_TLS: Final = ("SSL", "SASL_SSL")
_WITH_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_JAAS: Final = "sasl.jaas.config"
_USER: Final = "user_"
_SCHEME: Final = "://"
_SASL_SETTINGS: Final = frozenset(
    {
        MECHANISMS,
        _REAUTHENTICATION,
        f"plain.{_JAAS}",
        *(f"{name.lower()}.{_JAAS}" for name in SCRAM_MECHANISMS),
        *OAUTH_SETTINGS,
    }
)
"""Those that can be given for one listener, too."""
_OF_ONE: Final = _SASL_SETTINGS | TLS_SETTINGS | {MAX_CREATION_RATE}
_NUMBERS: Final = {
    _REAUTHENTICATION: f"a number of milliseconds up to {INT64_MAX}, or 0 for no limit",
    MAX_CREATION_RATE: f"a number of connections up to {INT32_MAX}",
}
"""What is said of those that are numbers."""
_OWN: Final = "listener.name."
_OFFERED: Final = ("plain", "oauthbearer", *(name.lower() for name in SCRAM_MECHANISMS))
_NOT_OFFERED: Final = {"gssapi": "gateways offer no GSSAPI"}
"""What settings of mechanisms begin with that are refused where they are enabled."""


@dataclass(frozen=True, slots=True)
class GatewayListener:
    """One listener."""

    name: str
    """In upper case, as Kafka has it: `PLAINTEXT`, `CLIENTS`."""
    address: Address
    """Where it accepts connections."""
    told: Address | None = None
    """The address that its clients are told; None for that where it listens."""
    security_protocol: str = "PLAINTEXT"
    mechanisms: tuple[str, ...] = ()
    """Those of SASL that it offers; none without SASL."""
    passwords: PasswordCheck | None = None
    """Of the users of PLAIN, where that is offered."""
    max_session_ms: int = 0
    """`connections.max.reauth.ms`: how long a login counts; 0 for as long as the connection."""
    tls: ListenerTls | None = None
    """What it encrypts with; None for nothing."""
    oauth: ListenerOAuth | None = None
    """How tokens are checked, where OAUTHBEARER is offered."""
    most_in_a_second: int | None = None
    """Connections (`max.connection.creation.rate`); None for as many as all listeners may have."""


def listeners_of(config: BrokerConfig) -> list[GatewayListener]:
    """What `listeners` and the settings around it say; nothing where `listeners` is not set.

    Raises:
        ConfigError: They make no sense, or do not go together.
        NotYetSupportedError: For mechanisms that gateways do not have, and what Python's `ssl` cannot do.
        MissingExtraError: For stores of Java's without the extra that reads them.
    """
    given = config.given(LISTENERS)
    if given is None:
        for name in (ADVERTISED, PROTOCOLS):
            if config.given(name) is not None:
                raise ConfigError(
                    f"{name} is set, and {LISTENERS} is not: name the listeners there, as NAME://HOST:PORT"
                )
        if config.of_listeners:
            first = next(iter(config.of_listeners))
            raise ConfigError(f"{first} is set, and {LISTENERS} is not: name the listeners there, as NAME://HOST:PORT")
        _check_tls_is_for(config, ())
        check_oauth_is_for(config, offered=False)
        return []
    addresses = _addresses(LISTENERS, given)
    controllers = {name.upper() for name in config.get_list(CONTROLLERS)} if config.given(CONTROLLERS) else set()
    if addresses and controllers.issuperset(addresses):
        raise ConfigError(f"{LISTENERS} has only listeners for controllers ({CONTROLLERS}): a gateway serves clients")
    for name in controllers:
        addresses.pop(name, None)
    if not addresses:
        raise ConfigError(f"{LISTENERS} is empty: name one at least, as PLAINTEXT://127.0.0.1:9092")
    _check_ports(addresses)
    told = _addresses(ADVERTISED, config.given(ADVERTISED) or "")
    for name in controllers:
        told.pop(name, None)
    for name in told.keys() - addresses.keys():
        raise ConfigError(f"{ADVERTISED} names the listener {shown(name)}, which {LISTENERS} does not have")
    protocols = _protocols(config)
    _check_names(config, addresses, controllers)
    _check_tls_is_for(config, [protocols.get(name) for name in (*addresses, *controllers)])
    found = [_listener(config, name, at, told.get(name), protocols) for name, at in addresses.items()]
    check_oauth_is_for(config, offered=any(each.oauth is not None for each in found))
    return found


def _addresses(setting: str, text: str) -> dict[str, Address]:
    """Addresses by the names of listeners."""
    found: dict[str, Address] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, scheme, at = item.partition(_SCHEME)
        name = name.upper()
        if not (scheme and name):
            raise ConfigError(f"{setting}: {shown(item)} is no listener; one is NAME://HOST:PORT")
        if name in found:
            raise ConfigError(f"{setting} has two listeners named {shown(name)}; each has a name of its own")
        try:
            everywhere = at.startswith(":")  # a listener without a host is on all addresses, as in Kafka
            address = parse_address(f"localhost{at}" if everywhere else at, default_port=None)
        except KafkaError as error:
            raise ConfigError(f"{setting}: the address of the listener {shown(name)} is wrong: {error}") from error
        if address.scheme != "tcp" or (everywhere and setting == ADVERTISED):
            raise ConfigError(f"{setting}: {shown(item)} is no listener; one is NAME://HOST:PORT")
        found[name] = Address("", address.port) if everywhere else address
    return found


def _check_ports(addresses: Mapping[str, Address]) -> None:
    ports = [at.port for at in addresses.values() if at.port]
    if len(set(ports)) < len(ports):
        raise ConfigError(f"{LISTENERS} has a port twice; each listener has a port of its own, or 0 for any free one")


def _protocols(config: BrokerConfig) -> dict[str, str]:
    """Security protocols by the names of listeners."""
    found: dict[str, str] = {}
    for item in filter(None, map(str.strip, config.get_text(PROTOCOLS).split(","))):
        name, _, protocol = item.partition(":")
        if protocol.strip().upper() not in _KNOWN:
            raise ConfigError(f"{PROTOCOLS}: {shown(item)} is none of NAME:PROTOCOL with one of {', '.join(_KNOWN)}")
        found[name.strip().upper()] = protocol.strip().upper()
    return found


def _check_names(config: BrokerConfig, addresses: Mapping[str, Address], controllers: Collection[str]) -> None:
    """Every setting of a listener is that of one that there is, and is one that listeners have."""
    left_out = tuple(f"{_OWN}{name.lower()}." for name in controllers)
    for name in config.of_listeners:
        if name.startswith(left_out):
            continue
        for listener in addresses:
            own = f"{_OWN}{listener.lower()}."
            if name.startswith(own) and _is_known(config, name, name.removeprefix(own)):
                break
        else:
            raise ConfigError(
                f"{shown(name)} is no setting of a listener: these begin with {_OWN} and the name of one of "
                f"{LISTENERS} in small letters, and end with one of {', '.join(sorted(_OF_ONE))}"
            )


def _is_known(config: BrokerConfig, name: str, setting: str) -> bool:
    """Whether one listener may have a setting, and some of Kafka's do. Raises `ConfigError` for what is not taken."""
    if setting in _OF_ONE:
        return True
    mechanism, _, of_it = setting.partition(".")
    if mechanism in _NOT_OFFERED:
        config.has_no_effect(name, _NOT_OFFERED[mechanism])
        return True
    if mechanism in _OFFERED:
        setting = of_it
    if setting == _JAAS:  # it says nothing without a mechanism before it
        return False
    if setting in REFUSED:
        if not REFUSED[setting].harmless(config.of_listeners[name].reveal()):
            raise ConfigError(f"the broker setting {name} is not taken here: {REFUSED[setting].reason}")
        return True
    if setting in WITHOUT_EFFECT:
        config.has_no_effect(name, WITHOUT_EFFECT[setting])
        return True
    if setting in BROKER_SETTINGS:
        raise ConfigError(f"{name} is not taken here: gateways have {setting} for all listeners together")
    return False


def _check_tls_is_for(config: BrokerConfig, protocols: Sequence[str | None]) -> None:
    """Who sets up encryption has a listener that encrypts."""
    if any(protocol in _WITH_TLS for protocol in protocols):
        return
    for name in sorted(TLS_SETTINGS):
        if name in config.secrets or config.given(name) is not None:
            raise ConfigError(
                f"{name} has no effect: no listener encrypts; give {LISTENERS} one as SSL://HOST:PORT, or as SASL_SSL, "
                f"or one that {PROTOCOLS} has speak one of these"
            )


def _listener(
    config: BrokerConfig, name: str, address: Address, told: Address | None, protocols: Mapping[str, str]
) -> GatewayListener:
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{PROTOCOLS} does not say how clients come in by the listener {shown(name)}: add {name}:PROTOCOL"
        )
    own = f"listener.name.{name.lower()}."
    for parts, with_it, what in ((_SASL_SETTINGS, _WITH_SASL, "SASL"), (TLS_SETTINGS, _WITH_TLS, "TLS")):
        if protocol not in with_it:
            for setting in config.of_listeners:
                if setting.startswith(own) and setting.removeprefix(own) in parts:
                    raise ConfigError(f"{setting} has no effect: the listener {name} is without {what}")
    tls = tls_of(config, name, protocol) if protocol in _WITH_TLS else None
    rate = _number(config, own, MAX_CREATION_RATE)
    if protocol not in _WITH_SASL:
        return GatewayListener(name, address, told, protocol, tls=tls, most_in_a_second=rate)
    mechanisms = _mechanisms(_text(config, own + MECHANISMS), config)
    for mechanism in SCRAM_MECHANISMS:
        _check_scram(config, own, mechanism)
    passwords = _passwords(config, own, name) if "PLAIN" in mechanisms else None
    oauth = oauth_of(config, name, offered=OAUTHBEARER in mechanisms)
    session_ms = _number(config, own, _REAUTHENTICATION)
    if session_ms is None:
        session_ms = config.get_int(_REAUTHENTICATION)
    return GatewayListener(name, address, told, protocol, mechanisms, passwords, session_ms, tls, oauth, rate)


def _text(config: BrokerConfig, name: str) -> str | None:
    found = config.of_listeners.get(name)
    return None if found is None else found.reveal()


def _mechanisms(text: str | None, config: BrokerConfig) -> tuple[str, ...]:
    given: Sequence[str] = config.get_list(MECHANISMS) if text is None else [each.strip() for each in text.split(",")]
    found = tuple(dict.fromkeys(each.upper() for each in given if each))
    for each in found:
        if each == "GSSAPI":
            raise NotYetSupportedError(f"{MECHANISMS}: gateways do not have GSSAPI, only {', '.join(_MECHANISMS)}")
        if each not in _MECHANISMS:
            raise ConfigError(f"{MECHANISMS}: {shown(each)} is none of {', '.join(_MECHANISMS)}")
    if not found:
        raise ConfigError(f"{MECHANISMS} is empty: without a mechanism nobody could log in")
    return found


def _check_scram(config: BrokerConfig, own: str, mechanism: str) -> None:
    """A broker's settings have a login module without anything in it."""
    name = f"{own}{mechanism.lower()}.{_JAAS}"
    text = _text(config, name)
    if text is None:
        return
    entry = parse_jaas(text)
    if entry.module != "ScramLoginModule" or entry.options:
        raise ConfigError(
            f"{name} is a ScramLoginModule without options, or left out: users are added by "
            "AlterUserScramCredentials (kclient users set)"
        )


def _passwords(config: BrokerConfig, own: str, listener: str) -> PasswordCheck:
    name = f"{own}plain.{_JAAS}"
    text = _text(config, name)
    if text is None:
        raise ConfigError(
            f"the listener {listener} offers PLAIN, and has no users for it: set {name} to a PlainLoginModule with "
            'user_NAME="PASSWORD" for each'
        )
    entry = parse_jaas(text)
    if entry.module != "PlainLoginModule":
        raise ConfigError(f"{name} names another login module than PlainLoginModule, the one of PLAIN")
    # user name and password of the module itself are those of a broker that calls others, which gateways do not
    users = {option.removeprefix(_USER): each for option, each in entry.options.items() if option.startswith(_USER)}
    if not users or not all(users) or not all(users.values()):
        raise ConfigError(f'{name} has no user, or an empty name or password: add user_NAME="PASSWORD" for each')
    return fixed_passwords(users)


def _number(config: BrokerConfig, own: str, name: str) -> int | None:
    """The value of one of its settings that are numbers; None where it has none of its own."""
    text = _text(config, own + name)
    if text is None:
        return None
    try:
        found = BROKER_SETTINGS[name].parse(text)
    except ConfigError:
        raise ConfigError(f"{own}{name} is {_NUMBERS[name]}") from None
    assert isinstance(found, int)
    return found
