"""What the brokers of one store share: memory, and the files that may be open."""

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
        brokers: How many brokers there are.
    """

    def __init__(self, files: Files, max_open_files: int | None, brokers: int = 1) -> None:
        memory, loop = process_memory(), LoopHandle()
        files.read_buffers.count_in(memory, loop)
        self._files = files
        self._max_open_files = max_open_files
        self._brokers = brokers
        self._open_files: list[OpenFiles] = []
        self.indexes: IndexMemory = IndexMemory(memory, loop)

    def open_files(self) -> OpenFiles:
        """What one of the brokers opens files with."""
        made = OpenFiles(self._files, self._max_open_files, brokers=self._brokers)
        self._open_files.append(made)
        return made

    def close(self) -> None:
        """Nobody reads or writes any more."""
        for each in self._open_files:
            each.close()
        self._files.read_buffers.close()
