"""What fetches of clients older than Kafka 0.11 have read, made older: the message formats v0 and v1."""

from __future__ import annotations

from functools import partial

from kclient.errors import KafkaError
from kclient.gateway.handlers.fetch_reading import Fetch, FetchReader
from kclient.gateway.old_formats import ConvertedRecords, fetched_format, fetched_in, room_to_fetch
from kclient.gateway.workers import Workers
from kclient.types import Buffer


class OldFetches:
    """Converts what was read.

    Args:
        reader: Who read it.
        workers: The threads in which that is done.
    """

    def __init__(self, reader: FetchReader, workers: Workers) -> None:
        self._reader = reader
        self._workers = workers

    async def convert(self, fetch: Fetch) -> bool:
        """Convert the partitions that have records, one after the other.

        What there is no memory for is left for the client's next fetch.

        Returns:
            False if nothing is left of all that was read, as of control batches: then there may be more behind it,
            where the fetch goes on from now on.
        """
        size, moved = 0, False
        for number, answer in list(fetch.rows.items()):
            records = answer.records
            wanted = fetch.plan.wanted[number]
            del fetch.rows[number]
            if not records or fetch.context.connection.gone:
                continue
            try:
                made = await self._older(fetch, number, records)
            except KafkaError as error:
                fetch.fail(number, error)
                continue
            if made is None:
                continue
            if made.records:
                answer.records = made.records
                fetch.rows[number] = answer
                size += len(made.records)
            elif made.next_offset > wanted.offset:
                wanted.offset, moved = made.next_offset, True
        if size or fetch.errors or not moved:
            fetch.size = size
            return True
        fetch.clear()
        fetch.context.place.give_back()
        return False

    async def _older(self, fetch: Fetch, number: int, records: Buffer) -> ConvertedRecords | None:
        """A partition's records; None if there is no memory to make them older."""
        wanted = fetch.plan.wanted[number]
        partition = self._reader.find(fetch, wanted.key)
        if partition is None:
            return None
        connection, place = fetch.context.connection, fetch.context.place
        most = partition.config.max_decompressed_bytes
        needed = await self._workers.run(partial(room_to_fetch, records, most))
        room = min(needed, max(connection.share.most - place.held, 0))
        if not place.take(room):
            return None
        magic = fetched_format(fetch.context.api_version)
        grown = 0
        try:
            made = await self._workers.run(partial(fetched_in, records, magic, wanted.offset, most, room))
            grown = len(made.records) - len(records)
        finally:
            place.give_back(but=place.taken - room + grown)
        return made
