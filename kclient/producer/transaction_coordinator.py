"""Asking a coordinator, of transactions or of a group, until it answers with something that does not pass."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from kclient.cluster import version_for
from kclient.cluster.coordinators import GROUP, TRANSACTION
from kclient.errors import ErrorCode, KafkaError, UnsupportedVersionError
from kclient.producer.transaction_errors import (
    ErrorKind,
    TransactionRequest,
    error_of,
    kind_of,
)
from kclient.producer.transactions import V1, V2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.cluster import Cluster
    from kclient.net.connection import Connection
    from kclient.protocol.message import ApiMessage

logger: logging.Logger = logging.getLogger("kclient.producer")

CHANNEL: Final = "transactions"
"""Brokers answer a connection in order: what ends a transaction must not wait behind records."""
_FEATURE: Final = "transaction.version"
FIRST_PAUSE: Final = 0.02
"""Seconds to wait where the transaction before is still being completed, instead of `retry.backoff.ms`."""

_SEVERITY: Final = (
    ErrorKind.RETRIABLE,
    ErrorKind.REFRESH_RETRIABLE,
    ErrorKind.ABORTABLE,
    ErrorKind.APPLICATION_RECOVERABLE,
    ErrorKind.INVALID_CONFIGURATION,
)


class Code(NamedTuple):
    """An error code in an answer."""

    code: int
    subject: str = ""
    """The partition that it is of; empty for the whole request."""


class AllowedVersions(NamedTuple):
    """Which versions of a request may be used."""

    lowest: int = 0
    highest: int | None = None
    hint: str = ""
    """Why no lower one will do, for the error."""


class RefusedError(Exception):
    """A request failed for a reason that does not pass.

    Args:
        error: Why.
        kind: What that means.
    """

    def __init__(self, error: KafkaError, kind: ErrorKind) -> None:
        super().__init__(str(error))
        self.error = error
        self.kind = kind


class GivenUpError(Exception):
    """Nobody wants the answer any more, and what was asked for has surely not been done."""


class CoordinatorRequests:
    """The requests of one producer to one coordinator.

    Args:
        cluster: Finds it, and connects to it.
        key: What it coordinates.
        key_type: `TRANSACTION` or `GROUP`.
        transactional_id: Of the producer, for messages.
    """

    def __init__(self, cluster: Cluster, key: str, key_type: int, transactional_id: str) -> None:
        assert key_type in {GROUP, TRANSACTION}
        self.problem: KafkaError | None = None
        """Why the present request has not been answered yet."""
        self.version: int = V1
        """The generation of the transaction protocol that the cluster had finalized when it was last connected to."""
        self._cluster = cluster
        self._key = key
        self._key_type = key_type
        self._transactional_id = transactional_id
        self._node: int | None = None
        self._speaks: dict[type[ApiMessage], int] = {}

    def speaks(self, request: type[ApiMessage]) -> int:
        """The highest version of a request that both sides speak, as of the last connection; -1 for none."""
        return self._speaks.get(request, -1)

    async def ask(
        self,
        what: TransactionRequest,
        message: ApiMessage,
        codes: Callable[[Any], Iterable[Code]],
        *,
        versions: AllowedVersions = AllowedVersions(),  # noqa: B008  (immutable)
        also: tuple[type[ApiMessage], ...] = (),
        wanted: Callable[[], bool] = lambda: True,
        pause: float | None = None,
    ) -> Any:
        """Ask until there is an answer without an error.

        Args:
            what: Which request it is.
            message: The request.
            codes: The errors in an answer; those with code 0 are none.
            versions: Which versions may be used.
            also: Requests whose versions are noted, for `speaks`.
            wanted: Whether it is still to be done; if not, it is given up unless it may have been done.
            pause: Seconds to wait where the transaction before is still being completed; None for the usual back-off.

        Raises:
            RefusedError: It failed for a reason that does not pass.
            GivenUpError: Nobody wants it any more, and it has not been done.
        """
        try:
            return await self._ask(what, message, codes, versions, also, wanted, pause)
        finally:
            self.problem = None

    async def _ask(
        self,
        what: TransactionRequest,
        message: ApiMessage,
        codes: Callable[[Any], Iterable[Code]],
        versions: AllowedVersions,
        also: tuple[type[ApiMessage], ...],
        wanted: Callable[[], bool],
        pause: float | None,
    ) -> Any:
        attempts = 0
        unknown = False
        while True:
            if not unknown and not wanted():
                raise GivenUpError
            sent = False
            try:
                connection = await self._connection()
                self._note(connection, (type(message), *also))
                version = self._version(connection, type(message), versions)
                sent = True
                answer: Any = await self._cluster.request_on(connection, message, response=object, max_version=version)
            except KafkaError as error:
                if not error.retriable or error.fatal:
                    kind = kind_of(what, error)
                    raise RefusedError(error, kind) from error
                self._node = None
                unknown = unknown or sent
                self.problem = error
            else:
                refused = self._worst(what, codes(answer))
                if refused is None:
                    return answer
                self.problem, kind = refused
                if kind not in {ErrorKind.RETRIABLE, ErrorKind.REFRESH_RETRIABLE}:
                    raise RefusedError(self.problem, kind)
                if kind is ErrorKind.REFRESH_RETRIABLE:
                    self._node = None
                elif self.problem.code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    unknown = False  # the one before still stands in its place
            attempts += 1
            logger.debug("%s of %r: attempt %d failed: %s", what.value, self._transactional_id, attempts, self.problem)
            delay = self._cluster.retry_backoff.seconds(attempts)
            if pause is not None and self.problem.code == ErrorCode.CONCURRENT_TRANSACTIONS:
                delay = min(delay, pause)
            await anyio.sleep(delay)

    async def _connection(self) -> Connection:
        if self._node is None:
            self._node = (await self._cluster.find_coordinator(self._key, self._key_type)).id
        return await self._cluster.connection(self._node, CHANNEL)

    def _note(self, connection: Connection, requests: tuple[type[ApiMessage], ...]) -> None:
        self.version = V2 if connection.features.get(_FEATURE, 0) >= V2 else V1
        for request in requests:
            try:
                self._speaks[request] = version_for(connection, request)
            except UnsupportedVersionError:
                self._speaks[request] = -1

    @staticmethod
    def _version(connection: Connection, request: type[ApiMessage], versions: AllowedVersions) -> int:
        version = version_for(connection, request, versions.highest)
        if version < versions.lowest:
            raise UnsupportedVersionError(
                f"{connection.address} takes {request.__name__.removesuffix('Request')} only up to version {version}: "
                f"{versions.hint}"
            )
        return version

    def _worst(self, what: TransactionRequest, codes: Iterable[Code]) -> tuple[KafkaError, ErrorKind] | None:
        worst: tuple[KafkaError, ErrorKind] | None = None
        for code, subject in codes:
            if not code:
                continue
            error = error_of(what, code, self._transactional_id, subject)
            kind = kind_of(what, error)
            skipped = worst is not None and worst[0].code == ErrorCode.OPERATION_NOT_ATTEMPTED
            if worst is None or skipped or _SEVERITY.index(kind) > _SEVERITY.index(worst[1]):
                worst = error, kind
        return worst
