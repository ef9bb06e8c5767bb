"""What came of reading settings and certificates again, while a gateway runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["Reloaded"]


class Reloaded(NamedTuple):
    """What `Gateway.reload` has done."""

    changed: tuple[str, ...] = ()
    """Settings that are in force as they are now."""
    altered: tuple[str, ...] = ()
    """Settings that have changed, and stay as AlterConfigs has set them."""
    restart: tuple[str, ...] = ()
    """Settings that have changed, and that only a restart changes."""
    certificates: Mapping[str, str | None] = MappingProxyType({})
    """By each listener with TLS: None where its certificates were read again, else why they stay what they were."""
    refused: str | None = None
    """Why no setting was changed, if they are wrong or do not go together."""

    @property
    def left_undone(self) -> bool:
        """Whether something is not as it was to be."""
        return bool(self.restart or self.altered or self.refused or any(self.certificates.values()))

    def lines(self) -> Iterator[str]:
        """All of it for people, in lines."""
        if self.refused is not None:
            yield f"no setting was changed: {self.refused}"
        elif self.changed:
            yield f"settings changed: {', '.join(self.changed)}"
        elif not (self.altered or self.restart):
            yield "no setting has changed"
        if self.altered:
            yield f"settings that stay as AlterConfigs has set them: {', '.join(self.altered)}"
        if self.restart:
            yield f"settings that only a restart changes: {', '.join(self.restart)}"
        for listener, reason in self.certificates.items():
            if reason is None:
                yield f"certificates of the listener {listener} were read again"
            else:
                yield f"certificates of the listener {listener} stay what they were: {reason}"
