"""Writes rows of units, which nobody writes but who leads them: under the lease, and the generation that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kclient.gateway.rows.keys import ASSIGNMENT
from kclient.htp.errors import ConflictError, FencedError

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.living_topics import LivingTopics
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.unit import Unit
    from kclient.htp.port import Manager


class FencedWriter:
    """Commits rows of units that this gateway leads.

    The lease fences a gateway as a whole; that the row of the generations is expected as it is known fences what has
    moved away from a gateway that lives: then the commit conflicts, the generations are read, and what is led still is
    committed again. That the rows of topics are expected leaves none of one that another gateway has deleted.

    Args:
        manager: Keeps the rows.
        lease: Under which they are written.
        generations: Tell who leads what.
        topics: Tell which topics are there; if None, nothing is left out whose topic has gone.
    """

    def __init__(
        self, manager: Manager, lease: HeldLease, generations: ClusterGenerations, topics: LivingTopics | None = None
    ) -> None:
        self._manager = manager
        self._lease = lease
        self._generations = generations
        self._topics = topics

    async def commit(
        self, writes: Mapping[str, bytes | None], units: Iterable[Unit], expect: Mapping[str, int] | None = None
    ) -> int:
        """Write rows of some units, all or none.

        Args:
            writes: They; None removes one.
            units: Whose they are.
            expect: Versions that some rows have to have.

        Returns:
            The version that they have then.

        Raises:
            FencedError: Another gateway leads one of the units, or one of the same number has started.
            ConflictError: A row has another version than was expected.
            TopicGoneError: The topic of a unit was deleted.
            HtpError: The store failed.
        """
        units = list(units)
        fingerprints = [unit.fingerprint for unit in units]
        generations = self._generations
        topics = None if self._topics is None else self._topics.expectation(unit.topic_id for unit in units)
        while True:
            # with the version that goes with it, so that no generation comes in between unnoticed
            if not all(map(generations.leads, fingerprints)):
                raise FencedError("another gateway leads by now: nothing was written")
            expected = {**(expect or {}), ASSIGNMENT: generations.version}
            if topics is not None:
                expected |= topics.versions
            try:
                return await self._manager.commit(writes, expected, lease=self._lease.current)
            except ConflictError as conflict:
                if conflict.key == ASSIGNMENT:
                    await generations.read_all()
                elif topics is None:
                    raise
                else:
                    await topics.look_again(conflict)
