"""What the brokers of one store share: open files, and memory."""

from __future__ import annotations

from kclient.concurrency import LoopHandle
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.handles import OpenFiles
from kclient.htp.embedded.index_memory import IndexMemory
from kclient.memory_ledger import process_memory


class SharedByBrokers:
    """Made in the event loop of the store; closed there, after all brokers.

    Args:
        files: The file system.
        max_open_files: Of segments, at a time; if None, as many as the process may open and leaves to them.
    """

    def __init__(self, files: Files, max_open_files: int | None) -> None:
        memory, loop = process_memory(), LoopHandle()
        files.read_buffers.count_in(memory, loop)
        self._files = files
        self.open_files: OpenFiles = OpenFiles(files, max_open_files)
        self.indexes: IndexMemory = IndexMemory(memory, loop)

    def close(self) -> None:
        """Nobody reads or writes any more."""
        self.open_files.close()
        self._files.read_buffers.close()
