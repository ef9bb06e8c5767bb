"""The data source beside Spark's built-in `kafka` connector: a batch read to noop, local[2].

The JVM connector is released for Spark 4.2, so run this in an environment with PySpark 4.2 (`make benchmark-spark`);
with another PySpark it measures ours alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from benchmarks.harness import alternating, console, kafka, report
from kclient.sync import Admin, Producer
from tests.kafka_artifacts import spark_connector_jars


def main(records: int = 4_000_000) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with_connector = pyspark.__version__.startswith("4.2.")
    if with_connector:
        builder = builder.config("spark.jars", ",".join(map(str, spark_connector_jars())))
    with kafka() as server:
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic("bench", partitions=4)
        with Producer(bootstrap_servers=server.bootstrap, batch_size=1 << 20, linger_ms=20) as producer:
            for _ in range(records // 100_000):
                producer.send_batch("bench", [b"x" * 100] * 100_000)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")

        def read(source: str) -> Callable[[], float]:
            def run() -> float:
                frame = (
                    spark.read.format(source)
                    .option("kafka.bootstrap.servers", server.bootstrap)
                    .option("subscribe", "bench")
                    .option("startingOffsets", "earliest")
                    .load()
                )
                started = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                return records / (time.perf_counter() - started)

            return run

        contenders = {"kclient": read("kclient")}
        if with_connector:
            contenders["built-in kafka"] = read("kafka")
        else:
            console.print(f"PySpark {pyspark.__version__}: no JVM connector is released for it; ours alone")
        report(f"Spark reads {records:,} records to noop, local[2]", alternating(contenders))
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
