"""What keeps a migration from going on."""

from __future__ import annotations

from kclient.errors import KafkaError


class MigrationError(KafkaError):
    """The migration cannot go on: the text says why, and what to do."""
