"""A broker in the process that keeps its messages on disk: nothing to start, no port open.

Usage: python embedded.py [DIRECTORY]. Run it twice: the second run finds the records of the first. While it runs,
other processes that name the same directory join it.
"""

import sys

from kclient.sync import Consumer, Producer


def main(directory: str) -> None:
    address = f"embedded:{directory}"
    with Producer(bootstrap_servers=address) as producer:
        delivery = producer.send("diary", b"I was here")
        print(f"entry number {delivery.result(timeout=30).offset + 1}, forced to disk before it was acknowledged")

    with Consumer(bootstrap_servers=address) as consumer:
        partitions = [info.topic_partition for info in consumer.partitions_for("diary")]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        entries = 0
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            entries += len(consumer.poll(timeout=1.0))
    print(f"{entries} entries in {directory}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./diary-data")
