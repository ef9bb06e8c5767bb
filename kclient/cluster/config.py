"""The settings that the cluster layer reads; every client's configuration has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kclient.net.settings import ConnectionConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.config.sasl_credentials import OAuthCredentials, PasswordCredentials


class ClusterConfig(ConnectionConfig, Protocol):
    """Kafka's client settings in snake_case, times in milliseconds."""

    @property
    def bootstrap_servers(self) -> Sequence[str] | str:
        """Addresses to start from."""
        ...

    @property
    def security_protocol(self) -> str:
        """`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
        ...

    @property
    def sasl_credentials(self) -> PasswordCredentials | OAuthCredentials | None:
        """What to authenticate with; None without SASL."""
        ...

    @property
    def default_api_timeout_ms(self) -> int:
        """How long a whole operation may take, with its retries."""
        ...

    @property
    def metadata_max_age_ms(self) -> int:
        """Age at which metadata are fetched anew."""
        ...

    @property
    def metadata_recovery_strategy(self) -> str:
        """`rebootstrap` or `none` (KIP-899)."""
        ...

    @property
    def metadata_recovery_rebootstrap_trigger_ms(self) -> int:
        """How long metadata may fail before the bootstrap servers are asked again (KIP-1102)."""
        ...

    @property
    def retry_backoff_ms(self) -> int:
        """Delay before the first retry."""
        ...

    @property
    def retry_backoff_max_ms(self) -> int:
        """Longest delay between retries."""
        ...

    @property
    def reconnect_backoff_ms(self) -> int:
        """Delay before the first new attempt to connect to a broker."""
        ...

    @property
    def reconnect_backoff_max_ms(self) -> int:
        """Longest delay between attempts to connect to a broker."""
        ...
