"""A Kafka topic as a DataFrame. Usage: python with_spark.py [BOOTSTRAP]; without an address, on an embedded broker."""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from kclient.sync import Producer


def main(bootstrap: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # The producer stays open: Spark's workers join its embedded broker through the socket in the directory.
    with Producer(bootstrap_servers=bootstrap, value_serializer="str") as producer:
        producer.send_batch("words", ["tick", "tock", "tick", "boom"] * 1000)
        producer.flush()
        words = (
            spark.read.format("kclient")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", "words")
            .load()
            .selectExpr("cast(value as string) as word")
        )
        for row in words.groupBy("word").count().orderBy("word").collect():
            print(f"{row['word']}: {row['count']}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        main(f"embedded:{tempfile.mkdtemp()}")
