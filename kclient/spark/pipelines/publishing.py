"""The files of a committed run put where they belong, and what readers need beside them."""

from __future__ import annotations

import re
from pathlib import Path

from kclient.spark.pipelines.folder import ArchiveFolder, explained, sync
from kclient.spark.pipelines.layout import ArchiveLayout, topic_of
from kclient.spark.pipelines.manifest import Manifest
from kclient.spark.pipelines.parquet_files import write_empty

_NUMBER = re.compile(r"[\d.-]|(nan|inf|infinity|true|false|null)$", re.IGNORECASE)
"""What readers may take for something else than text, as the value of a folder's name."""
_NO_TOPIC = "~"
_TEXT_MARKER = "no-records.parquet"
"""A file without records of a topic that no cluster can have. One name that is not a number makes readers take all
names as text: `007` alone would be 7."""


def publish(folder: ArchiveFolder, manifest: Manifest) -> None:
    """Moves what a run has archived to where readers look, and deletes what it says; done already it does nothing.

    Raises:
        ArchiveError: a file is missing, or the file system refuses; the next run tries again.
    """
    _keep_names_text(folder.destination, manifest)
    folder.publish(manifest)


def _keep_names_text(destination: Path, manifest: Manifest) -> None:
    if not any(_NUMBER.match(topic_of(file.path)) for file in manifest.files):
        return
    layout = ArchiveLayout(manifest.layout)
    target = destination / layout.folder_at(_NO_TOPIC, 0) / _TEXT_MARKER
    if target.exists():
        return
    with explained(f"{target} could not be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"_{manifest.run}.tmp")
        write_empty(temporary)
        sync(temporary)
        temporary.rename(target)
        for each in target.parents[: len(layout.names) + 1]:
            sync(each)
