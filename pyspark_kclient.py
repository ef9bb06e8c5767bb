"""Lets Spark find the data source `kclient` without registration: it looks for `pyspark_*` modules that do this."""

from kclient.spark.source import KclientDataSource as DefaultSource

__all__ = ["DefaultSource"]
