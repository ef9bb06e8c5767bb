"""Produce and consume with asyncio. Usage: python with_asyncio.py [BOOTSTRAP]; by default, a broker in memory."""

import asyncio
import sys

import kclient


async def main(bootstrap: str) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        # send waits only for buffer space; the delivery can be awaited now, later or never.
        deliveries = [await producer.send("greetings", f"hello {number}".encode()) for number in range(100)]
        first = await deliveries[0]
        print(f"the first record is at {first.topic}-{first.partition}, offset {first.offset}")
    # Leaving the block flushed the rest; what failed and nobody awaited would have been reported.

    count = 0
    async with kclient.Consumer(
        "greetings", group_id="asyncio-example", auto_offset_reset="earliest", bootstrap_servers=bootstrap
    ) as consumer:
        async for record in consumer:
            count += 1
            if count == 100:
                print(f"read {count} records; the last: {record.value.decode()}")
                break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory:example"))
