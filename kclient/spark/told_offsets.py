"""What is told beside an offset that a group has committed: one JSON object, with the number of its format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kclient.errors import KafkaError
from kclient.types import OffsetAndMetadata

__all__ = ["told_with"]


def told_with(
    group: str,
    offset: OffsetAndMetadata,
    newest: int,
    error: type[KafkaError],
    foreign: Callable[[str, OffsetAndMetadata], KafkaError],
) -> Mapping[str, Any]:
    """The object.

    Args:
        group: Who has committed the offset.
        offset: It.
        newest: The greatest number of a format that is known here.
        error: Raised where a newer one has been written.
        foreign: Makes what is raised where something else has committed it.
    """
    try:
        told = json.loads(offset.metadata)
    except ValueError:
        raise foreign(group, offset) from None
    if not isinstance(told, dict) or not isinstance(told.get("format"), int):
        raise foreign(group, offset)
    if told["format"] > newest:
        raise error(
            f"the group {group} was written by a newer kclient (format {told['format']}, and this one knows {newest}): "
            "go on with that version"
        )
    return told
