"""What topics and gateways tell of themselves beside their settings; it cannot be set."""

from __future__ import annotations

from typing import Final

from kclient.config.setting import Text
from kclient.gateway.setting import BrokerSetting

_S: Final = Text()

HTP_MAPPING: Final = BrokerSetting(
    "htp.mapping",
    _S,
    None,
    "How the topic's partitions lie in HTP: what the gateway's option `mapping` was when the topic was created.",
)
"""What a topic tells of itself beside its settings; it cannot be set."""

HTP_MIRROR: Final = BrokerSetting(
    "htp.mirror",
    _S,
    None,
    "Where the topic is moved in from, with its id there: `following CLUSTER/ID` while it takes records from there "
    "only, `taken over from CLUSTER/ID` since it takes producers' records. Topics that were made here do not have it.",
)
"""Another; only `kclient migrate` makes it."""

HTP_LEASE_AGE: Final = BrokerSetting(
    "htp.lease.age.ms",
    _S,
    None,
    "Milliseconds since the gateway asked for its lease to be renewed the last time that it was.",
)
HTP_CHECKPOINTS_BEHIND: Final = BrokerSetting(
    "htp.checkpoints.behind",
    _S,
    None,
    "Open partitions of which more is stored than their last checkpoint says, which is read again after a crash.",
)
HTP_GENERATIONS: Final = BrokerSetting(
    "htp.generations",
    _S,
    None,
    "Why the last generations of gateways began, each with its number, which is the leader epoch of the partitions "
    "that it has moved: `12 joined 2, 15 by hand, 16 crashed 1`.",
)
"""What a gateway tells of itself and of its cluster beside its settings, as it is at this moment; it cannot be set."""

ONLY_TOLD: Final = (HTP_MAPPING, HTP_MIRROR, HTP_LEASE_AGE, HTP_CHECKPOINTS_BEHIND, HTP_GENERATIONS)
"""What DescribeConfigs tells beside settings."""
