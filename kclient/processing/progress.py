"""How far processing has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessingProgress:
    """Figures since the start, at one moment."""

    records_in: int = 0
    """Records whose transactions are committed, with those that were skipped."""
    records_out: int = 0
    """Records that were written in committed transactions."""
    commits: int = 0
    """Transactions that were committed."""
    aborts: int = 0
    """Transactions that were aborted."""
    repeated: int = 0
    """Records that had been processed in transactions that were aborted: they are, or were, processed again."""
    failures: int = 0
    """How often the function failed, or what it returned could not be sent."""
    skipped: int = 0
    """Records that were skipped for good (`Skip`)."""
    dead_letters: int = 0
    """Records that were written to another topic for good (`DeadLetter`)."""
    lag: int = 0
    """Records by which the reader is behind in the partition where it is behind most, by what it was told last."""


@dataclass(slots=True)
class _Tally:
    """What is counted of one transaction, or of all."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0

    def add(self, other: _Tally) -> None:
        """Count another one in."""
        self.records_in += other.records_in
        self.records_out += other.records_out
        self.skipped += other.skipped
        self.dead_letters += other.dead_letters


class ProgressCounter:
    """Counts what happens; what is not committed counts apart."""

    def __init__(self) -> None:
        self.running: _Tally = _Tally()
        """Of the transaction that is open."""
        self.failures: int = 0
        self._committed = _Tally()
        self._commits = 0
        self._aborts = 0
        self._repeated = 0

    def committed(self, *, empty: bool) -> None:
        """The transaction is committed; one that holds nothing does not count."""
        self._committed.add(self.running)
        self._commits += not empty
        self.running = _Tally()

    def aborted(self) -> None:
        """The transaction is aborted, or was given up."""
        self._repeated += self.running.records_in
        self._aborts += 1
        self.running = _Tally()

    def snapshot(self, lag: int) -> ProcessingProgress:
        """The figures now."""
        done = self._committed
        return ProcessingProgress(
            records_in=done.records_in,
            records_out=done.records_out,
            commits=self._commits,
            aborts=self._aborts,
            repeated=self._repeated,
            failures=self.failures,
            skipped=done.skipped,
            dead_letters=done.dead_letters,
            lag=lag,
        )
