"""Columns instead of records: Arrow batches to pandas and polars. Usage: python arrow_columns.py [BOOTSTRAP]"""

import sys

import polars
import pyarrow

from kclient.sync import Consumer, Producer

COUNT = 200_000


def main(bootstrap: str) -> None:
    with Producer(bootstrap_servers=bootstrap, linger_ms=20, compression_type="zstd") as producer:
        producer.send_batch("measurements", [f"{number % 100}".encode() for number in range(COUNT)])

    batches = []
    with Consumer(
        "measurements", group_id="arrow-example", auto_offset_reset="earliest", bootstrap_servers=bootstrap
    ) as consumer:
        while sum(batch.num_rows for batch in batches) < COUNT:
            batches.append(consumer.poll_arrow(timeout=1.0))
    table = pyarrow.Table.from_batches(batches)
    print(f"{table.num_rows:,} rows in {len(batches)} batches with the columns {', '.join(table.column_names)}")

    numbers = polars.from_arrow(table.select(["partition", "value"])).with_columns(
        polars.col("value").cast(polars.String).cast(polars.Int64)
    )
    print(f"polars: the mean is {numbers['value'].mean()}")

    frame = table.select(["partition", "offset", "timestamp"]).to_pandas()
    print("pandas: records by partition", frame.groupby("partition").size().to_dict())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory:example")
