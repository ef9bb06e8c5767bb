"""Has changes of topics that other gateways have made in force at this one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kclient.errors import ClosedError, KafkaError
from kclient.gateway.rows.keys import TOPICS
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.topics.catalogue import TopicCatalogue
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Change, Manager


class FollowedTopics:
    """Follows the rows of topics.

    A change only says which row to look at: the catalogue reads it when nobody changes that topic here, so what is told
    twice or late does no harm. What this gateway has changed itself is known by its version.

    Args:
        topics: What is known of them.
        catalogue: Has in force what their rows say.
        manager: Keeps the rows.
    """

    prefixes: tuple[str, ...] = (TOPICS,)
    """What it follows in the log of changes."""

    def __init__(self, topics: TopicTable, catalogue: TopicCatalogue, manager: Manager) -> None:
        self._topics = topics
        self._catalogue = catalogue
        self._manager = manager

    async def apply(self, changes: Sequence[Change]) -> None:
        """Rows have changed. Raises `KafkaError` if it is not known what some of them say; the others are in force."""
        names = {key.removeprefix(TOPICS): (value is not None, version) for key, value, version in changes}
        await self._refresh(name for name, (there, version) in names.items() if self._is_news(name, there, version))

    async def read_all(self) -> None:
        """Compare all rows. Raises `KafkaError` if it is not known what some of them say; the others are in force."""
        there: dict[str, int] = {}
        async for page in scan_pages(self._manager, TOPICS):
            there |= {key.removeprefix(TOPICS): row.version for key, row in page.items()}
        gone = [record.name for record in self._topics if record.name not in there]
        await self._refresh([*gone, *(name for name, version in there.items() if self._is_news(name, True, version))])

    def _is_news(self, name: str, there: bool, version: int) -> bool:
        """Whether something may have happened to a topic.

        Args:
            name: Of the topic.
            there: Whether it has a row.
            version: Of the row, or of the commit that removed it.
        """
        record = self._topics.get(name)
        if record is not None:
            return record.version < version
        return there or name in self._topics.damaged

    async def _refresh(self, names: Iterable[str]) -> None:
        failure: KafkaError | None = None
        for name in names:
            try:
                await self._catalogue.refresh(name)
            except ClosedError:
                raise
            except KafkaError as error:  # the others do not wait for this one
                failure = error
        if failure is not None:
            raise failure
