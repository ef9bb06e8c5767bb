"""A process that sends until it is killed: `python -m kclient.htp.contract.killed URL DOMAIN TOPIC KEY`.

It prints a line for each number up to which everything is synced, and committed by the manager. Before, it has taken
the lease KEY, and opened the topic, both under `EPOCH`.
"""

from __future__ import annotations

import sys
from typing import Final

import anyio

from kclient.htp.contract.messages import FRAMING, message
from kclient.htp.port import Topic
from kclient.htp.store import open_store

EPOCH: Final = 7


async def _send(url: str, topic: Topic, key: str) -> None:
    async with open_store(url) as store:
        place = (await store.manager.describe_topic(topic)).place
        await store.manager.acquire(key, "killed", 60, above=EPOCH - 1)
        opened = await store.broker.open(place, FRAMING, epoch=EPOCH)
        number = 0
        while True:
            sent = []
            for _ in range(7):
                sent.append(await opened.send([message(number, b"%010d" % number)]))
                number += 1
            await sent[-1].synced()
            await store.manager.commit({key: b"%d" % number})
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(_send, sys.argv[1], Topic(sys.argv[2], sys.argv[3]), sys.argv[4])
