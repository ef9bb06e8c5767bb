"""The same client under trio: a producer and a consumer side by side. Usage: python with_trio.py [BOOTSTRAP]"""

import sys

import trio

import kclient

COUNT = 100


async def produce(bootstrap: str) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(COUNT):
            await producer.send("ticks", f"tick {number}".encode(), key=b"clock")
            await trio.sleep(0.001)


async def consume(bootstrap: str) -> None:
    async with kclient.Consumer(
        "ticks", group_id="trio-example", auto_offset_reset="earliest", bootstrap_servers=bootstrap
    ) as consumer:
        count = 0
        while count < COUNT:
            # An empty result after the timeout is no error: nothing arrived.
            for record in await consumer.poll(timeout=1.0):
                assert record.value == f"tick {count}".encode(), "records with one key stay in order"
                count += 1
        print(f"read {count} ticks in order")


async def main(bootstrap: str) -> None:
    async with kclient.Admin(bootstrap_servers=bootstrap) as admin:
        if "ticks" not in {topic.name for topic in await admin.list_topics()}:
            await admin.create_topic("ticks", partitions=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume, bootstrap)
        nursery.start_soon(produce, bootstrap)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "memory:example")
