"""How topics are called."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Place", "Topic"]


class Topic(NamedTuple):
    """The address of a topic: its domain and its name, which may have several levels (`a/b`)."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}:{self.name}"


class Place(NamedTuple):
    """Where messages are: a topic at a broker, also when the topic has been deleted and its name is used again."""

    topic: Topic
    broker: str
    """The broker that keeps them; empty for a topic that is bound to none, where that is the store's affair."""
    incarnation: int
    """As the manager tells (`TopicInfo.incarnation`, or of a further broker that it is bound to `TopicInfo.further`); 0
    if the backend has none."""

    def __str__(self) -> str:
        return f"{self.topic} at {self.broker or 'no broker'} (incarnation {self.incarnation})"
