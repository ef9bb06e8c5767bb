"""A program that reads and writes by Spark's own `kafka` connector, batch and stream, and prints what it saw as JSON.

Arguments: the broker's address, the topic, a folder for checkpoints, and the connector's jars with commas between them.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit

COUNT = 1000


def main(bootstrap: str, topic: str, folder: str, jars: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", jars)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    address = {"kafka.bootstrap.servers": bootstrap}

    def write(first: int, last: int) -> None:
        frame = spark.range(first, last).select(
            concat(lit("key "), col("id")).alias("key"),
            concat(lit("value "), col("id")).alias("value"),
        )
        frame.write.format("kafka").options(**address, topic=topic).save()

    def read(name: str = topic, **options: str) -> DataFrame:
        frame = spark.read.format("kafka").options(**address, subscribe=name, includeHeaders="true", **options).load()
        return frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset", "timestamp")

    def numbers(name: str = topic, **options: str) -> list[int]:
        return sorted(int(row.value.split()[1]) for row in read(name, **options).collect())

    def copy() -> None:
        """By a stream, as far as there is anything."""
        frame = (
            spark.readStream.format("kafka")
            .options(**address, subscribePattern=f"{topic}$", startingOffsets="earliest", maxOffsetsPerTrigger="300")
            .load()
        )
        query = (
            frame.writeStream.format("kafka")
            .options(**address, topic=f"{topic}-copy", checkpointLocation=f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    write(0, COUNT)
    told: dict[str, object] = {"batch": numbers() == list(range(COUNT))}
    rows = read().collect()
    told["keys"] = all(row.key.split()[1] == row.value.split()[1] for row in rows)
    told["offsets"] = sorted((row.partition, row.offset) for row in rows)
    middle = {topic: {str(number): 100 for number in range(3)}}
    told["from"] = len(numbers(startingOffsets=json.dumps(middle)))
    told["to"] = len(numbers(endingOffsets=json.dumps(middle)))
    moment = min(int(row.timestamp.timestamp() * 1000) for row in rows)
    told["since"] = len(numbers(startingTimestamp=str(moment)))
    copy()
    told["copied"] = numbers(f"{topic}-copy") == list(range(COUNT))
    write(COUNT, 2 * COUNT)
    copy()
    told["copied on"] = numbers(f"{topic}-copy") == list(range(2 * COUNT))
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
