"""Patterns of topics that the broker evaluates."""

from __future__ import annotations

from dataclasses import dataclass

from kclient.arguments import check_text


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A pattern of topic names that the broker evaluates, for `Consumer.subscribe` (KIP-848).

    It has to match whole names. The consumer needs `group.protocol=consumer` and Kafka 4.0 or newer. A compiled pattern
    (`re.compile`) is evaluated by the client instead, which fetches the metadata of all topics for it.

    Args:
        pattern: A regular expression in the syntax of RE2/J, which is not quite Python's: nothing looks ahead or
            behind, or refers back. A broker that cannot read it has `poll` raise `InvalidRegularExpressionError`.

    Raises:
        TypeError: It is not text.
        ValueError: It is empty, or cannot be sent.
    """

    pattern: str

    def __post_init__(self) -> None:
        check_text(self.pattern, "a SubscriptionPattern")
        if not self.pattern:
            raise ValueError("a SubscriptionPattern is not empty: an empty one matches no topic's name")
