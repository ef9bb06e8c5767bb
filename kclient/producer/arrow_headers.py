"""Headers that all the rows of Arrow data get, such as a trace context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.errors import SerializationError
from kclient.tracing.replaced import replaced_by

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["with_headers"]


def with_headers(pyarrow: Any, batch: Any, headers: Mapping[str, bytes]) -> Any:
    """A RecordBatch whose rows have these headers, too.

    Args:
        pyarrow: The package.
        batch: The rows; their own headers of the same names (case does not count) are left out.
        headers: The headers.

    Raises:
        SerializationError: The column `headers` is of a type that is not that of headers.
    """
    kind = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
    names = batch.schema.names
    if "headers" not in names:
        column = pyarrow.repeat(
            pyarrow.scalar([{"key": key, "value": headers[key]} for key in headers], kind), len(batch)
        )
        return batch.append_column("headers", column)
    position = names.index("headers")
    try:
        replaced = replaced_by(headers)
        rows = [[*_others(row, replaced), *headers.items()] for row in batch.column(position).to_pylist()]
        column = pyarrow.array([[{"key": key, "value": value} for key, value in row] for row in rows], kind)
    except KeyError:
        raise SerializationError(
            f"column 'headers' of type {batch.schema.types[position]} is not a list of keys and values"
        ) from None
    except (TypeError, ValueError, AttributeError, pyarrow.ArrowException) as error:
        raise SerializationError(f"column 'headers' of type {batch.schema.types[position]}: {error}") from error
    return batch.set_column(position, "headers", column)


def _others(row: Any, replaced: Collection[str]) -> list[tuple[str, Any]]:
    """The headers of a row that are not replaced."""
    pairs = [(item["key"], item["value"]) if isinstance(item, dict) else item for item in row or ()]
    return [(key, value) for key, value in pairs if not isinstance(key, str) or key.lower() not in replaced]
