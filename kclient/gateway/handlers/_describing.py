"""Descriptions of groups whose members have epochs: what those of consumer, share and streams groups have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, cast

from kclient.acls import AclOperation, ResourceType
from kclient.errors import KafkaError
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers._work import FEW, Work, started
from kclient.gateway.handlers.handler import Begun, Handler
from kclient.protocol.lazy_arrays import lazily

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.protocol.message import ApiMessage

_PER_GROUP: Final = 1_000
"""About how many bytes of memory the row of a group takes, without its members."""


class _Request(Protocol):
    """A request to describe groups."""

    group_ids: list[str]
    include_authorized_operations: bool


class _Row(Protocol):
    """The description of a group, as far as all types have it."""

    group_state: str
    group_epoch: int
    assignment_epoch: int
    authorized_operations: int


class _Described(Protocol):
    """What is asked of a group, of whatever type it is."""

    group_epoch: int
    assignment_epoch: int

    @property
    def shown_state(self) -> str:
        """The name of its state."""
        ...


RowT = TypeVar("RowT", bound=_Row)
GroupT = TypeVar("GroupT", bound=_Described)


class GroupDescribeHandler(Handler, Generic[RowT, GroupT]):
    """Shows groups of a type, each as it is now.

    Args:
        access: Who may do what.
    """

    ROLE: ClassVar[Role] = Role.GROUPS
    ONLY_READS: ClassVar[bool] = True
    _ROW: ClassVar[Callable[..., Any]]
    """Makes the row of a group, given its `group_id`."""
    _RESPONSE: ClassVar[Callable[..., ApiMessage]]
    """Makes the response, given the rows as `groups`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def begin(self, request: _Request, context: RequestContext) -> Begun:
        """Describe each group that is named."""
        self._check()
        return cast("Begun", started(self._begin(request, context.connection)))

    # In what types of groups differ

    def _check(self) -> None:
        """Whether there are groups of this type; raises `UnsupportedVersionError` if not."""

    def _find(self, group_id: str) -> GroupT:
        """The group of this name; raises `GroupIdNotFoundError` if there is none of this type."""
        raise NotImplementedError

    def _describe(self, group: GroupT, row: RowT, client: ConnectionContext) -> Work:
        """Describe a group in steps: its members while the response is encoded; that the client may, before."""
        raise NotImplementedError

    # Each group

    def _begin(self, request: _Request, client: ConnectionContext) -> Work:
        rows: list[RowT] = []
        for group_id in request.group_ids:
            row = self._row(group_id)
            rows.append(row)
            try:
                self._access.check_group(client, AclOperation.DESCRIBE, group_id)
                if request.include_authorized_operations:
                    row.authorized_operations = self._access.operations(client, ResourceType.GROUP, group_id)
                yield from self._describe(self._find(group_id), row, client)
            except KafkaError as error:
                rows[-1] = self._failed(group_id, error)
            if len(rows) % FEW == 0:
                yield _PER_GROUP * FEW
        return self._response(rows)

    def _put_state(self, group: GroupT, row: RowT) -> None:
        """Say in what state a group is, at the moment at which its members are looked at."""
        row.group_state = group.shown_state
        row.group_epoch, row.assignment_epoch = group.group_epoch, group.assignment_epoch

    def _row(self, group_id: str) -> RowT:
        row: RowT = self._ROW(group_id=group_id)
        return row

    def _response(self, rows: Sequence[RowT]) -> ApiMessage:
        return self._RESPONSE(groups=lazily(len(rows), iter(rows)))

    def _failed(self, group_id: str, error: KafkaError) -> RowT:
        row = self._row(group_id)
        put_error(row, error, self.ROLE)
        return row

    def fail(self, request: _Request, context: RequestContext, error: KafkaError) -> ApiMessage:
        """The same error for each group."""
        ids = request.group_ids
        return self._RESPONSE(groups=lazily(len(ids), (self._failed(group_id, error) for group_id in ids)))
