"""Giving up the end of a segment, or a whole one, after its sync failed."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from kclient.htp.embedded.reading import scan

if TYPE_CHECKING:
    from kclient.htp.embedded.handles import OpenFiles
    from kclient.htp.embedded.segment import Segment
    from kclient.htp.port import Framing

logger: logging.Logger = logging.getLogger(__name__)


def discard(segment: Segment, open_files: OpenFiles) -> bool:
    """Remove a segment of which nothing was synced; whether its file has gone."""
    try:
        if segment.exists:
            open_files.files.remove(segment.path)
            segment.exists = False
            open_files.files.remove(segment.index_path)
    except OSError as error:
        logger.error("%s could not be removed: %s", segment.path, error)
        if segment.exists:
            _empty(segment, open_files)
    finally:
        open_files.remove(segment.handle)
    return not segment.exists


def _empty(segment: Segment, open_files: OpenFiles) -> None:
    """So that what was told to be lost does not come back if the process ends before the file can be removed."""
    try:
        fd = open_files.pin(segment.handle)
        try:
            open_files.files.truncate(fd, 0)
        finally:
            open_files.unpin(segment.handle)
    except OSError as error:
        logger.error("%s could not be emptied: %s", segment.path, error)


def cut(segment: Segment, framing: Framing, open_files: OpenFiles) -> None:
    """Cut the file back to what the index covers, and read back that it is there."""
    try:
        fd = open_files.pin(segment.handle)
        try:
            open_files.files.truncate(fd, segment.size)
            _read_back(segment, fd, framing, open_files)
        finally:
            open_files.unpin(segment.handle)
    except OSError as error:
        # the limit, kept in the checkpoint, holds without it
        logger.error("%s could not be cut back to %d bytes: %s", segment.path, segment.size, error)


def _read_back(segment: Segment, fd: int, framing: Framing, open_files: OpenFiles) -> None:
    """The messages since the last index entry: they are next to what was lost."""
    place = segment.index.place_before(segment.size)
    for info in scan(partial(open_files.files.read, fd), framing, place, segment.size, 0):
        place += info.length
    if place != segment.size:
        logger.critical("%s is damaged at byte %d: synced messages are lost", segment.path, place)
