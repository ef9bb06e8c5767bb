"""What the job of a run says when it fails."""

from __future__ import annotations

import errno

from kclient.spark.pipelines.job import cause_of
from kclient.spark.pipelines.manifest import ArchiveError


def test_a_java_process_that_was_killed_is_no_broker() -> None:
    found = cause_of(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert isinstance(found, ArchiveError)
    assert str(found) == (
        "Spark's Java process does not answer any more; was it killed? ([Errno 111] Connection refused)"
    )
