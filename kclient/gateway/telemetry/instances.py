"""The clients that ask which metrics are wanted, and push them: what each may do when (KIP-714). No I/O, no clock."""

from __future__ import annotations

import base64
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import (
    ErrorCode,
    InvalidRequestError,
    KafkaError,
    TelemetryTooLargeError,
    ThrottlingQuotaExceededError,
    UnknownSubscriptionIdError,
    UnsupportedCompressionTypeError,
)
from kclient.records import CompressionType, crc32c

if TYPE_CHECKING:
    from kclient.gateway.telemetry.subscriptions import WantedMetrics
    from kclient.memory_ledger import LimitedAccount

ACCEPTED: Final = (CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP, CompressionType.SNAPPY)
"""How clients may compress what they push, the best first; it may be uncompressed, too."""
ZERO_ID: Final = bytes(16)
"""What a client calls itself that has no id yet."""
_COMPRESSIONS: Final = frozenset(map(int, CompressionType))
_RESERVED: Final = frozenset({ZERO_ID, bytes(15) + b"\x01"})
"""Ids that clients must not have."""
_MOST: Final = 16_384
"""Clients that are known at a time, as many as a broker of Kafka knows."""
_ONE: Final = 1_000
"""About how many bytes of memory a client takes, beside its names."""
_SHORTEST_LIFE_S: Final = 60.0
_SWEEP_S: Final = 10.0
_AT_ONCE_AFTER: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""Errors after which a client asks anew, and need not wait until it may push again."""


def life_of(interval_ms: int) -> float:
    """Seconds for which a client counts that is not heard of: three times as long as it may be silent."""
    return max(_SHORTEST_LIFE_S, 3 * interval_ms / 1000)


class PushingClient(NamedTuple):
    """Who a client is, as it was when it was heard of first."""

    client_id: str | None
    software_name: str
    software_version: str
    address: str
    port: str | None

    def values(self, instance_id: bytes) -> Mapping[str, str | None]:
        """What the setting `match` of subscriptions looks at."""
        return {
            "client_instance_id": told_id(instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.address,
            "client_source_port": self.port,
        }

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return 2 * (len(self.client_id or "") + len(self.software_name) + len(self.software_version))


def told_id(instance_id: bytes) -> str:
    """The id of a client as Kafka writes it."""
    return base64.urlsafe_b64encode(instance_id).rstrip(b"=").decode()


@dataclass(slots=True, eq=False)
class ClientInstance:
    """A client under an id of its own, with what is wanted of it."""

    instance_id: bytes
    client: PushingClient
    wanted: WantedMetrics
    subscription_id: int
    expires: float
    """When it is forgotten, unless it is heard of again."""
    asked: float = float("-inf")
    """When it was told last what is wanted."""
    pushed: float = float("-inf")
    terminating: bool = False
    """Whether it has said that it pushes no more."""
    last_error: ErrorCode = ErrorCode.NONE

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return _ONE + self.client.size

    def ask(self, now: float) -> None:
        """It asks what is wanted.

        Args:
            now: Seconds on the monotonic clock.

        Raises:
            ThrottlingQuotaExceededError: It has asked or pushed a moment ago.
        """
        in_time = now - max(self.asked, self.pushed) >= self.wanted.interval_ms / 1000
        if in_time:
            self.asked = now
        elif self.last_error not in _AT_ONCE_AFTER:
            raise ThrottlingQuotaExceededError(
                f"Request from the client [{told_id(self.instance_id)}] arrived before the next push interval time"
            )
        self.last_error = ErrorCode.NONE

    def push(
        self, now: float, subscription_id: int, compression: int, size: int, max_bytes: int, *, terminating: bool
    ) -> None:
        """It pushes metrics: whether it may.

        Args:
            now: Seconds on the monotonic clock.
            subscription_id: Of what it was told last.
            compression: The number of that of the metrics.
            size: Their bytes.
            max_bytes: How many there may be.
            terminating: Whether these are the last.

        Raises:
            InvalidRequestError: It has pushed its last before.
            ThrottlingQuotaExceededError: It has pushed a moment ago, and these are not the last.
            UnknownSubscriptionIdError: Something else is wanted by now.
            UnsupportedCompressionTypeError: There is no such compression.
            TelemetryTooLargeError: These are too many bytes.
        """
        try:
            self._check_push(now, subscription_id, compression, size, max_bytes, terminating=terminating)
        except KafkaError as error:
            self.last_error = ErrorCode(error.code or 0)
            raise
        finally:
            self.terminating = terminating
        self.last_error = ErrorCode.NONE

    def _check_push(
        self, now: float, subscription_id: int, compression: int, size: int, max_bytes: int, *, terminating: bool
    ) -> None:
        told = told_id(self.instance_id)
        if self.terminating:
            raise InvalidRequestError(f"Client [{told}] has said before that it pushes no more")
        in_time = self.asked > self.pushed or now - self.pushed >= self.wanted.interval_ms / 1000
        if in_time:  # the first push after a question may come sooner: clients spread them
            self.pushed = now
        elif not terminating:
            raise ThrottlingQuotaExceededError(
                f"Request from the client [{told}] arrived before the next push interval time"
            )
        if subscription_id != self.subscription_id:
            raise UnknownSubscriptionIdError(f"Unknown client subscription id for the client [{told}]")
        if compression not in _COMPRESSIONS:
            raise UnsupportedCompressionTypeError(
                f"Unknown compression type [{compression}] is received in telemetry request from [{told}]"
            )
        if size > max_bytes:
            raise TelemetryTooLargeError(
                f"Telemetry request from [{told}] is larger than the maximum allowed size [{max_bytes}]"
            )


class ClientInstances:
    """The clients that were heard of lately.

    Args:
        memory: Where they count: without room for one more the one that was heard of longest ago is forgotten.
        new_id: Makes an id for a client that has none.
    """

    def __init__(self, memory: LimitedAccount, new_id: Callable[[], bytes] | None = None) -> None:
        self._memory = memory
        self._new_id = new_id or _random_id
        self._known: OrderedDict[bytes, ClientInstance] = OrderedDict()
        """The one that was heard of longest ago comes first."""
        self._sweep = float("-inf")
        """When those are looked for that have expired."""

    def __len__(self) -> int:
        return len(self._known)

    def id_of(self, asked: bytes) -> bytes:
        """The id of a client that asks under an id: a new one if that is `ZERO_ID`."""
        if asked != ZERO_ID:
            return asked
        while (found := self._new_id()) in self._known:
            pass
        return found

    def who(self, instance_id: bytes, client: PushingClient) -> PushingClient:
        """Who the client of an id is: what is known of it, else what it says now."""
        known = self._known.get(instance_id)
        return client if known is None else known.client

    def wanted_of(self, instance_id: bytes, version: int) -> WantedMetrics | None:
        """What is wanted of the client of an id; None unless that is known as of this version of the subscriptions."""
        known = self._known.get(instance_id)
        return known.wanted if known is not None and known.wanted.version == version else None

    def heard(self, instance_id: bytes, client: PushingClient, wanted: WantedMetrics, now: float) -> ClientInstance:
        """A client is heard of: it, as it is known from now on.

        Args:
            instance_id: Its id.
            client: Who it is, see `who`.
            wanted: What is wanted of it now.
            now: Seconds on the monotonic clock.
        """
        self._expire(now)
        found = self._known.get(instance_id)
        if found is None or found.wanted.version != wanted.version:
            self.forget(instance_id)
            found = ClientInstance(instance_id, client, wanted, subscription_id_of(wanted, instance_id), 0.0)
            while self._known and (len(self._known) >= _MOST or not self._memory.has_room(found.size)):
                self.forget(next(iter(self._known)))
            self._known[instance_id] = found
            self._memory.add(found.size)
        self._known.move_to_end(instance_id)
        found.expires = now + life_of(wanted.interval_ms)
        return found

    def forget(self, instance_id: bytes) -> None:
        """A client has gone."""
        found = self._known.pop(instance_id, None)
        if found is not None:
            self._memory.add(-found.size)

    def _expire(self, now: float) -> None:
        if now < self._sweep:
            return
        self._sweep = now + _SWEEP_S
        for instance_id in [each.instance_id for each in self._known.values() if each.expires <= now]:
            self.forget(instance_id)


def check_pushing_id(instance_id: bytes) -> None:
    """Refuse ids that no client has. Raises `InvalidRequestError`."""
    if instance_id in _RESERVED:
        raise InvalidRequestError(
            f"Invalid request from the client [{told_id(instance_id)}], invalid client instance id"
        )


def subscription_id_of(wanted: WantedMetrics, instance_id: bytes) -> int:
    """The number of what is wanted of a client: a checksum of that, mixed with the id as Kafka does."""
    checksum = crc32c(f"[{', '.join(wanted.metrics)}]{wanted.interval_ms}".encode())
    mixed = int.from_bytes(instance_id[:8], "big") ^ int.from_bytes(instance_id[8:], "big")
    found = checksum ^ mixed >> 32 ^ mixed & 0xFFFF_FFFF
    return found - (1 << 32) if found >= 1 << 31 else found


def _random_id() -> bytes:
    while True:
        found = uuid.uuid4().bytes
        if found not in _RESERVED and not told_id(found).startswith("-"):  # which options of tools begin with
            return found
