"""What the gateway reads of a consumer's opaque metadata: the topics it is subscribed to."""

from __future__ import annotations

from kclient.errors import ProtocolError
from kclient.protocol.embedded import decode_embedded
from kclient.protocol.messages import ConsumerProtocolSubscription

CONSUMER = "consumer"
"""The protocol type of consumers; others (Connect) are opaque throughout."""


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics of a ConsumerProtocolSubscription; None when it cannot be read."""
    try:
        return set(decode_embedded(ConsumerProtocolSubscription, metadata).topics)
    except ProtocolError:
        return None
