"""What several brokers told, of whom some may not have answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self, TypeVar

from kclient.admin.types import raise_failures
from kclient.errors import KafkaError

T = TypeVar("T")


class Listing(list[T]):
    """A list of what brokers told; what those have that did not answer is not in it.

    ```python
    groups = (await admin.list_groups()).complete()  # all of them, or an error
    ```

    Attributes:
        errors: why brokers did not answer, by their ids; empty where all did.
    """

    def __init__(self, what: str = "Listing", rows: Iterable[T] = (), errors: Mapping[int, KafkaError] | None = None):
        super().__init__(rows)
        self.errors: dict[int, KafkaError] = dict(errors or {})
        self._what = what

    def complete(self) -> Self:
        """This, if all brokers have answered.

        Raises:
            KafkaTimeoutError: one has not, or what else it has failed with.
            PartialFailureError: several have not.
        """
        raise_failures(self._what, {f"broker {node_id}": error for node_id, error in self.errors.items()})
        return self
