"""What the configurations of all clients share: their common settings, and how settings are read."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from kclient.arguments import brief, shown
from kclient.config.names import explain_unknown
from kclient.config.properties import parse_properties
from kclient.config.providers import is_of_provider, resolved, without_values
from kclient.config.security import SecuritySettings
from kclient.config.setting import (
    REQUIRED,
    Boolean,
    Choice,
    Classes,
    List,
    Number,
    PythonObject,
    Setting,
    Text,
    setting,
)
from kclient.errors import ConfigError, NotYetSupportedError

__all__ = ["LONG", "ClientConfig", "ConfigInput"]

logger: logging.Logger = logging.getLogger("kclient.config")

_DERIVED = ("_followed_context", "sasl_credentials")

TRACING = PythonObject("an opentelemetry.trace.TracerProvider", {"otel": "otel"})
"""The setting `tracing` of producers and consumers."""

LONG = 2**63 - 1
"""Largest value of Java's long."""

ConfigInput = Mapping[str, Any] | str | Path | None
"""Where settings come from: a mapping, a properties file (its path), or the text of one."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig(SecuritySettings):
    """The settings that producer, consumer and admin client have in common.

    Made by `parse`, which checks every value; times are in milliseconds, sizes in bytes.
    """

    CLIENT: ClassVar[str] = "client"
    """What people call the client whose settings these are."""

    bootstrap_servers: tuple[str, ...] = setting(
        List(),
        REQUIRED,
        """Addresses of some brokers, from which all others are found: `host:port`, or `embedded:DIR` or `memory:NAME`
        for a broker inside the process.""",
    )
    client_id: str = setting(
        Text(sent=True), "kclient", "Name that brokers show in logs, metrics and quotas.", java_default=""
    )
    client_dns_lookup: str = setting(
        Choice(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
        "use_all_dns_ips",
        "With `use_all_dns_ips` every address of a name is tried until one connects.",
        served_values=("use_all_dns_ips",),
    )
    connections_max_idle_ms: int = setting(
        Number(high=LONG), 540_000, "Connections that were idle for so long are closed; at 0 or below they never are."
    )
    metadata_max_age_ms: int = setting(
        Number(0, LONG), 300_000, "Age at which metadata are fetched anew even if nothing seems to have changed."
    )
    metadata_recovery_strategy: str = setting(
        Choice(("rebootstrap", "none")),
        "rebootstrap",
        """What helps when no known broker can be reached: begin again with `bootstrap.servers`, or fail
        (KIP-899).""",
    )
    metadata_recovery_rebootstrap_trigger_ms: int = setting(
        Number(0, LONG),
        300_000,
        "Begin again with `bootstrap.servers` when no known broker gave metadata for so long (KIP-1102).",
    )
    reconnect_backoff_ms: int = setting(
        Number(0, LONG), 50, "Delay before the first new attempt to connect to a broker; it doubles with each failure."
    )
    reconnect_backoff_max_ms: int = setting(
        Number(0, LONG), 1000, "Longest delay between attempts to connect to a broker."
    )
    request_timeout_ms: int = setting(
        Number(0), 30_000, "How long a broker may take to answer before its connection is given up."
    )
    retry_backoff_ms: int = setting(
        Number(0, LONG), 100, "Delay before a failed request is tried again; it doubles with each failure."
    )
    retry_backoff_max_ms: int = setting(Number(0, LONG), 1000, "Longest delay before a failed request is tried again.")
    send_buffer_bytes: int = setting(
        Number(-1),
        -1,
        "Size of the sockets' send buffers; -1 leaves it to the system, which adapts it to the traffic.",
        java_default=131_072,
    )
    receive_buffer_bytes: int = setting(
        Number(-1),
        -1,
        "Size of the sockets' receive buffers; -1 leaves it to the system, which adapts it to the traffic.",
        java_default=65_536,
    )
    socket_connection_setup_timeout_ms: int = setting(
        Number(1, LONG),
        10_000,
        "How long to wait for a broker's address to accept a connection, and to complete the TLS handshake.",
    )
    socket_connection_setup_timeout_max_ms: int = setting(
        Number(1, LONG),
        30_000,
        "Longest time to wait for a connection, to which the former would grow with each failure.",
        served=False,
    )
    config_providers: tuple[str, ...] = setting(
        List(),
        (),
        """Names of providers that know what variables stand for, such as `${env:PASSWORD}` or `${file:/path:key}`
        (KIP-297). `config.providers.NAME.class` is `env`, `file`, `directory`, the Java class, or a
        `kclient.config.ConfigProvider` (its name, if left out); `config.providers.NAME.param.…` are its parameters:
        `allowlist.pattern` of `env`, `allowed.paths` of the others.""",
    )
    enable_metrics_push: bool = setting(
        Boolean(),
        True,
        "Whether the client's metrics are sent to the cluster, where that asks for them (KIP-714).",
    )
    metric_reporters: tuple[Any, ...] = setting(
        Classes(
            PythonObject("a kclient.metrics.MetricsReporter or its class", {"prometheus": "prometheus", "otel": "otel"})
        ),
        (),
        """Are told which metrics the client has. `prometheus` has `prometheus_client` collect them, `otel`
        OpenTelemetry's global meter provider observe them; each needs the extra of that name.""",
        java_default=("org.apache.kafka.common.metrics.JmxReporter",),
    )
    metrics_num_samples: int = setting(
        Number(1),
        2,
        """Windows from which rates, averages, extremes and percentiles are computed, the present one included.""",
    )
    metrics_recording_level: str = setting(
        Choice(("INFO", "DEBUG", "TRACE")),
        "INFO",
        """Finest metrics that there are; with `DEBUG` and `TRACE` also percentiles of the latency of each broker.""",
    )
    metrics_sample_window_ms: int = setting(Number(0, LONG), 30_000, "How long such a window is; 0 counts as 1.")

    explicit: frozenset[str] = frozenset()
    """Kafka's names of the settings that were given, rather than left to their defaults."""

    @property
    def max_in_flight_requests_per_connection(self) -> int:
        """How many requests may be on their way to a broker at a time: the producer's setting, 100 in other clients."""
        return 100

    @classmethod
    def parse(cls, config: ConfigInput = None, /, **settings: Any) -> Self:
        """Read settings.

        Args:
            config: A mapping with names as in Kafka (`linger.ms`) or as arguments (`linger_ms`); or a properties file:
                its path, or its text.
            settings: Settings as arguments; they count more than `config`. None is the same as leaving one out.

        Raises:
            ConfigError: If a name is unknown (it suggests the nearest), a value is not allowed, settings contradict
                each other, or one that is needed is missing.
            NotYetSupportedError: If a setting asks for what kclient cannot do yet.
        """
        arguments = {name: value for name, value in cls._named(settings).items() if value is not None}
        given, written, stands_for = resolved({**cls._named(_read_source(config)), **arguments})
        try:
            return cls._made(given, written)
        except ConfigError as error:
            told = without_values(error, stands_for)
            if told is error:
                raise
            raise told from None

    @classmethod
    def _made(cls, given: Mapping[str, Any], written: Mapping[str, Any]) -> Self:
        """Of settings under Kafka's names; `written`: how those were written that had variables."""
        known = cls.settings()
        values = {
            name: known[name].parse(value, written.get(name)) for name, value in given.items() if value is not None
        }
        for name, value in values.items():
            _check_served(known[name], value, written.get(name))
        cls._complete(values)
        for name, item in known.items():
            if item.required and not values.get(name):
                raise ConfigError(f"{name} is missing: {item.doc}")
        explicit = frozenset(values)
        cls._reconcile(values)
        attributes = {known[name].attribute: value for name, value in values.items()}
        made = cls(**attributes, explicit=explicit)
        # files and credentials that are missing are told now, not when the first connection is made
        _ = made.tls_context, made.sasl_credentials
        if made.security_protocol.endswith("SSL") and not made.ssl_endpoint_identification_algorithm:
            logger.warning(
                "ssl.endpoint.identification.algorithm is empty: whoever has a certificate of a trusted authority, "
                "for whatever name, can pose as the broker"
            )
        return made

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """The settings of this client by Kafka's name, in the order of the reference."""
        return _settings(cls)  # type: ignore[arg-type]  # the class is hashed, not an instance

    def replace(self, **settings: Any) -> Self:
        """The same configuration with some settings changed, checked as in `parse`."""
        mine = {name: getattr(self, self.settings()[name].attribute) for name in self.explicit}
        return self.parse(mine, **settings)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was made of the settings, which is made anew."""
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    @classmethod
    def _named(cls, source: Mapping[str, Any]) -> dict[str, Any]:
        """The settings under Kafka's names."""
        known, named = cls.settings(), dict[str, Any]()
        for given, value in source.items():
            if not isinstance(given, str):
                raise ConfigError(f"the name of a setting is text, not {shown(given)}")
            # names of providers and of their parameters are the user's, and may have underscores
            name = given if given in known or is_of_provider(given) else given.replace("_", ".")
            if name not in known and not is_of_provider(name):
                raise ConfigError(explain_unknown(given, cls.CLIENT, _settings_by_client(cls)))
            if name in named:
                raise ConfigError(f"{name} is given twice, as {name} and as {name.replace('.', '_')}")
            named[name] = value
        return named

    @classmethod
    def _complete(cls, values: dict[str, Any]) -> None:
        """Add to the given `values` what follows from them.

        Raises:
            ConfigError: If they contradict each other.
        """

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        """Check and adjust settings that depend on each other; `values` holds those that were given.

        Raises:
            ConfigError: If they contradict each other.
        """


def _read_source(config: ConfigInput) -> Mapping[str, Any]:
    """The settings of a mapping, a properties file or its text, as they are written there."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return config
    if isinstance(config, str) and ("\n" in config or "=" in config):
        return parse_properties(config)
    path = Path(config)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the properties file {brief(str(path))} cannot be read: {brief(str(reason))}") from error
    return parse_properties(text)


def _check_served(item: Setting, value: Any, written: Any = None) -> None:
    if item.serves(value):
        return
    # what stands there may be a password that was put into the wrong place
    hidden = value is None or item.name.startswith(("sasl.", "ssl.")) or "password" in item.name
    told = "" if hidden else f" = {shown(value if written is None else written)}"
    if item.served_values is not None:
        served = ", ".join(repr(choice) for choice in item.served_values)
        raise NotYetSupportedError(f"{item.name}{told} is not supported yet; what works is {served}")
    raise NotYetSupportedError(f"{item.name}{told} is not supported yet; leave it out ({item.doc})")


def _settings_by_client(mine: type[ClientConfig]) -> dict[str, dict[str, Setting]]:
    """The settings of one client and of the others: `kclient.config` has imported them all."""
    others = sorted(ClientConfig.__subclasses__(), key=lambda config: config.CLIENT, reverse=True)
    return {config.CLIENT: config.settings() for config in (*others, mine)}


@cache
def _settings(cls: type[ClientConfig]) -> dict[str, Setting]:
    declared = {}
    # own settings first: they are what people look for
    for field in sorted(dataclasses.fields(cls), key=lambda field: _depth(cls, field.name), reverse=True):
        if field.metadata:
            name = field.name.replace("_", ".")
            default = REQUIRED if field.default is dataclasses.MISSING else field.default
            declared[name] = Setting(name, default=default, **field.metadata)
    return declared


def _depth(cls: type, attribute: str) -> int:
    """How far from the root of the hierarchy an attribute was declared first."""
    owners = [owner for owner in cls.__mro__ if attribute in vars(owner).get("__annotations__", {})]
    return len(owners[-1].__mro__)
