"""Figures about one consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumerMetrics:
    """What is counted; the rest of `Consumer.metrics` is read off the state machines."""

    records: int = 0
    """Records handed out."""
    polls: int = 0
    commits: int = 0
    failed_commits: int = 0
