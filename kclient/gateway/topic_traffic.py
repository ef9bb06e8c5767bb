"""What has gone into a topic and out of it since the gateway's start."""

from __future__ import annotations


class TopicTraffic:
    """Counts; of what this gateway leads and serves. Whoever appends and reads adds to them."""

    __slots__ = ("bytes_in", "bytes_out", "records_in")

    def __init__(self) -> None:
        self.records_in: int = 0
        """Records of batches that were appended."""
        self.bytes_in: int = 0
        """Bytes of these batches, as they came."""
        self.bytes_out: int = 0
        """Bytes of batches that answers to consumers had."""
