"""How Parquet is written: compression, and how large row groups and files become."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.arguments import shown, whole_number
from kclient.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = {
    "none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "brotli": "brotli", "zstd": "zstd",
    "lz4": "lz4", "lz4_raw": "lz4",
}  # fmt: skip
"""Spark's names of the compressions that there are, and pyarrow's."""
_ROW_GROUP_BYTES = 64 << 20
_LEAST_SIZE = 64 << 10
_ADVISORY = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


@dataclass(frozen=True)
class ParquetChoices:
    """How files are written.

    Attributes:
        codec: the compression, as pyarrow calls it.
        level: of the compression; its own default if None.
        file_size: a file is finished when it has about so many bytes; None is without a limit.
        row_group_size: a row group is written when its records have so many bytes in memory.
    """

    codec: str = "snappy"
    level: int | None = None
    file_size: int | None = None
    row_group_size: int = _ROW_GROUP_BYTES

    @property
    def piece_size(self) -> int:
        """Records are taken in pieces of so many bytes at most, so that neither limit is passed by far."""
        return min(self.row_group_size, self.file_size or self.row_group_size) // 4


def codec_of(spark: SparkSession) -> str:
    """The session's compression of Parquet, as pyarrow calls it.

    Raises:
        ConfigError: it is one that pipelines do not know.
    """
    name = spark.conf.get("spark.sql.parquet.compression.codec", "snappy")
    found = CODECS.get(str(name).lower())
    if found is None:
        raise ConfigError(
            f"spark.sql.parquet.compression.codec is {name!r}, and pipelines know {', '.join(sorted(CODECS))}"
        )
    return found


def parquet_choices(
    spark: SparkSession | None,
    compression: str | None,
    compression_level: int | None,
    file_size: int | None,
    row_group_size: int | None,
) -> ParquetChoices:
    """The choices that arguments make; what is not said is the session's, or a default.

    Raises:
        ConfigError: a compression that is none, or a level that it has not; a size that is too small.
        TypeError: a level or a size that is no whole number.
    """
    limits = _size(file_size, "file_size"), _size(row_group_size, "row_group_size")
    level = None if compression_level is None else whole_number(compression_level, "compression_level")
    if level is not None and compression is None:
        raise ConfigError("compression_level is one of a compression: name that, too")
    if compression is not None:
        if not isinstance(compression, str) or compression.lower() not in CODECS:
            raise ConfigError(f"compression is one of {', '.join(sorted(CODECS))}, not {shown(compression)}")
        codec = CODECS[compression.lower()]
    else:
        codec = "snappy" if spark is None else codec_of(spark)
    if level is not None:
        _check_level(codec, level)
    return ParquetChoices(codec, level, limits[0], limits[1] or _ROW_GROUP_BYTES)


def _check_level(codec: str, level: int) -> None:
    from pyarrow import ArrowInvalid, Codec

    try:
        least, most = Codec.minimum_compression_level(codec), Codec.maximum_compression_level(codec)
    except ArrowInvalid:
        raise ConfigError(f"the compression {codec} has no levels: leave compression_level out") from None
    except ValueError:  # no compression at all
        raise ConfigError("without compression there is no level: leave compression_level out") from None
    if not least <= level <= most:
        raise ConfigError(f"compression_level of {codec} is from {least} to {most}, not {level}")


def _size(value: Any, what: str) -> int | None:
    if value is None:
        return None
    size = whole_number(value, what)
    if size < _LEAST_SIZE:
        raise ConfigError(f"{what} is in bytes, {_LEAST_SIZE} at least, not {size}")
    return size


def session_for(spark: SparkSession, choices: ParquetChoices) -> SparkSession:
    """A session of the same settings in which tasks get what a file of the chosen size takes.

    Spark divides what is large into parts of `spark.sql.adaptive.advisoryPartitionSizeInBytes`, and no file becomes
    larger than such a part.
    """
    wanted = choices.file_size
    if wanted is None or wanted <= _advised(spark):
        return spark
    own = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if own.conf.isModifiable(name):
            with suppress(Exception):  # one that only a session's beginning may set
                own.conf.set(name, value)
    own.conf.set(_ADVISORY, f"{wanted}b")
    return own


def _advised(spark: SparkSession) -> int:
    jvm: Any = spark.sparkContext._jvm
    text = str(spark.conf.get(_ADVISORY, "64MB"))
    return int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(text))
