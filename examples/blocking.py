"""The client without async. Usage: python blocking.py [BOOTSTRAP]"""

import sys

from kclient.sync import Consumer, Producer


def main(bootstrap: str) -> None:
    with Producer(bootstrap_servers=bootstrap, value_serializer="json", key_serializer="str") as producer:
        for number in range(1000):
            producer.send("orders", {"number": number, "amount": number * 1.5}, key=f"customer-{number % 7}")
        delivery = producer.send("orders", {"number": 1000, "amount": 0.0}, key="customer-0")
        metadata = delivery.result(timeout=30)
        print(f"the last order is at {metadata.topic}-{metadata.partition}, offset {metadata.offset}")

    total = 0.0
    count = 0
    with Consumer(
        "orders",
        group_id="blocking-example",
        auto_offset_reset="earliest",
        value_deserializer="json",
        key_deserializer="str",
        bootstrap_servers=bootstrap,
    ) as consumer:
        while count < 1001:
            for record in consumer.poll(timeout=1.0):
                total += record.value["amount"]
                count += 1
        consumer.commit()
    print(f"{count} orders, {total:,.2f} in all")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory:example")
