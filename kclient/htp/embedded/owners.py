"""Which opening of a data directory has the files of a topic, where several processes have it open.

A row of the database for each topic that is open, or was when its opening ended: written before the files are touched,
removed once they are no more. Who finds the row of another opening asks it to give the topic up, by an epoch in the
row; where that opening is not there any more (`processes.py`), nobody writes to the files, and they are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from kclient.htp.embedded.tables import chunks_of, owners

if TYPE_CHECKING:
    from kclient.htp.embedded.processes import Processes

# made once: see tables.py
_OWNERS: Final = select(owners.c.incarnation, owners.c.process).where(
    owners.c.incarnation.in_(bindparam("of_topics", expanding=True))
)
_TAKE: Final = insert(owners)
_TAKE_OVER: Final = (
    update(owners).where(owners.c.incarnation == bindparam("of_topic")).values(process=bindparam("taker"), wanted=None)
)
_ASK: Final = (
    update(owners)
    .where(
        owners.c.incarnation == bindparam("of_topic"),
        or_(owners.c.wanted.is_(None), owners.c.wanted < bindparam("epoch")),
    )
    .values(wanted=bindparam("epoch"))
)
_WANTED: Final = select(owners.c.incarnation, owners.c.wanted).where(
    owners.c.wanted >= 0, owners.c.process == bindparam("of_process")
)


class OwnerTable:
    """Takes topics, and gives them up; only for the thread that writes the database.

    Args:
        processes: Tell which openings are there.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def take(self, connection: Connection, wanted: Mapping[int, int]) -> int | None:
        """Take some topics, all or none.

        Args:
            connection: In a transaction.
            wanted: The incarnations, each with the epoch under which it is to be opened.

        Returns:
            None once they are taken; else the process id of one that has some of them: it is asked to give them up.
        """
        mine = self._processes.number
        taken: dict[int, int] = {}
        for some in chunks_of(list(wanted)):
            found = connection.execute(_OWNERS, {"of_topics": some})
            taken.update((row.incarnation, row.process) for row in found)
        free, left, holder = [], [], None
        for incarnation, epoch in wanted.items():
            process = taken.get(incarnation)
            if process is None:
                free.append(incarnation)
            elif process != mine:
                owner = self._processes.owner(process)
                if owner is None:
                    left.append(incarnation)
                else:
                    holder = owner
                    connection.execute(_ASK, {"of_topic": incarnation, "epoch": epoch})
        if holder is not None:
            return holder
        if free:
            connection.execute(_TAKE, [{"incarnation": each, "process": mine, "wanted": None} for each in free])
        if left:
            connection.execute(_TAKE_OVER, [{"of_topic": each, "taker": mine} for each in left])
        return None

    def give_up(self, connection: Connection, incarnations: Iterable[int]) -> None:
        """Let others have some topics; those that are not this opening's are left alone."""
        for some in chunks_of(list(incarnations)):
            connection.execute(
                delete(owners).where(owners.c.incarnation.in_(some), owners.c.process == self._processes.number)
            )

    def wanted(self, connection: Connection) -> dict[int, int]:
        """The topics that this opening has and others want, each with the epoch under which they open it."""
        self._processes.restore()
        found = connection.execute(_WANTED, {"of_process": self._processes.number})
        return {row.incarnation: row.wanted for row in found}

    def elsewhere(self, connection: Connection, incarnations: Iterable[int]) -> set[int]:
        """Those of some topics that another opening has."""
        mine = self._processes.number
        return {
            incarnation
            for some in chunks_of(list(incarnations))
            for incarnation in connection.scalars(
                select(owners.c.incarnation).where(owners.c.incarnation.in_(some), owners.c.process != mine)
            )
        }

    @staticmethod
    def clear(connection: Connection) -> None:
        """Forget all: no other opening is there."""
        connection.execute(delete(owners))
