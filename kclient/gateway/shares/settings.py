"""The settings of share groups, as far as they concern what is delivered to them."""

from __future__ import annotations

from dataclasses import dataclass

from kclient.gateway.settings_of_shares import LATEST


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How records are delivered to a share group; the defaults are Kafka's."""

    lock_ms: int = 30_000
    """How long a member has records that it does not acknowledge, in milliseconds (`share.record.lock.duration.ms`)."""
    deliveries: int = 5
    """How often a record is delivered at most (`share.delivery.count.limit`)."""
    locks: int = 2_000
    """How many records of a partition may be in flight (`share.partition.max.record.locks`)."""
    reset: str = LATEST
    """Where a group begins that has read nothing of a partition yet: `earliest`, `latest`, or `by_duration:PT…`
    (`share.auto.offset.reset`)."""
    reset_ms: int | None = None
    """For how long ago that is, in milliseconds; None if it is `earliest` or `latest`."""
    committed: bool = False
    """Whether only committed records are delivered (`share.isolation.level=read_committed`)."""
    renewing: bool = True
    """Whether members may renew their locks (`share.renew.acknowledge.enable`, KIP-1222)."""
