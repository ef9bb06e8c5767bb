"""DescribeClientQuotas and AlterClientQuotas: the quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from kclient.acls import AclOperation
from kclient.errors import InvalidRequestError, KafkaError, UnsupportedVersionError
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers._work import rows_for
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.gateway.quotas.entities import IP, TYPES, entity_of
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.users import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    ValueData,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.quota_entries import Alteration, QuotaEntries
    from kclient.gateway.quotas.entities import Entity, Quotas

_VERSIONS: Final = (0, 1)
_EXACT, _DEFAULT, _ANY = 0, 1, 2
"""How a component of a filter matches: one name, the default, or all of a type."""
_MOST: Final = 1000
"""Entities of one request."""
_MOST_PARTS: Final = 16
"""Parts that an entity is given by: it has two at most."""
_MOST_OPS: Final = 10_000
"""Quotas of one request."""

Named: TypeAlias = "tuple[tuple[str, str | None], ...]"
"""What an entity consists of, as a request has it."""


class DescribeClientQuotasHandler(Handler):
    """Answers DescribeClientQuotas."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    VERSIONS: ClassVar[VersionRange] = _VERSIONS
    ROLE: ClassVar[Role] = Role.CONTROLLER
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, entries: QuotaEntries) -> None:
        self._access = access
        self._entries = entries

    def begin(self, request: DescribeClientQuotasRequest, context: RequestContext) -> Finish:
        """The quotas that a filter finds; there may be thousands."""
        self._access.check_cluster(context.connection, AclOperation.DESCRIBE_CONFIGS)
        names, kinds = _filter(request)
        return partial(self._finish, names, kinds, request.strict, Pace(context.connection.flow))

    async def _finish(
        self, names: dict[str, str | None], kinds: set[str], strict: bool, pace: Pace
    ) -> DescribeClientQuotasResponse:
        found: list[tuple[Entity, Quotas]] = []
        for entity, quotas in list(self._entries.quotas.items()):
            await pace.pause()
            if _matches(dict(entity), names, kinds, strict=strict):
                found.append((entity, quotas))
        return DescribeClientQuotasResponse(error_message=None, entries=rows_for(found, _described))

    def fail(
        self, request: DescribeClientQuotasRequest, context: RequestContext, error: KafkaError
    ) -> DescribeClientQuotasResponse:
        """The error, and no list of entities."""
        answer = DescribeClientQuotasResponse(entries=None)
        put_error(answer, error, self.ROLE)
        return answer


def _described(found: tuple[Entity, Quotas]) -> DescribeClientQuotasResponseEntryData:
    entity, quotas = found
    return DescribeClientQuotasResponseEntryData(
        entity=[DescribeClientQuotasResponseEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[ValueData(key=name, value=value) for name, value in quotas.items()],
    )


def _filter(request: DescribeClientQuotasRequest) -> tuple[dict[str, str | None], set[str]]:
    """The names that entities have to have, by type, and the types of which any name will do.

    Raises:
        InvalidRequestError, UnsupportedVersionError: It makes no sense.
    """
    names: dict[str, str | None] = {}
    kinds: set[str] = set()
    for each in request.components:
        kind = each.entity_type
        if not kind:
            raise InvalidRequestError("Invalid empty entity type.")
        if kind in names or kind in kinds:
            raise InvalidRequestError(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise UnsupportedVersionError(f"Unsupported entity type {kind[:100]}")
        if each.match_type == _EXACT:
            if each.match is None:
                raise InvalidRequestError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            names[kind] = each.match
        elif each.match_type in (_DEFAULT, _ANY):
            if each.match is not None:
                shown = "DEFAULT" if each.match_type == _DEFAULT else "SPECIFIED"
                raise InvalidRequestError(f"Request specified MATCH_TYPE_{shown}, but also specified a match string.")
            if each.match_type == _DEFAULT:
                names[kind] = None
            else:
                kinds.add(kind)
        else:
            raise InvalidRequestError(f"Unknown match type {each.match_type}")
    asked = names.keys() | kinds
    if IP in asked and len(asked) > 1:
        raise InvalidRequestError(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return names, kinds


def _matches(entity: dict[str, str | None], names: dict[str, str | None], kinds: set[str], *, strict: bool) -> bool:
    if not (names or kinds):
        return not strict
    if strict and len(entity) != len(names) + len(kinds):
        return False
    return kinds <= entity.keys() and all(kind in entity and entity[kind] == name for kind, name in names.items())


class AlterClientQuotasHandler(Handler):
    """Answers AlterClientQuotas."""

    API: ClassVar[ApiKey] = ApiKey.ALTER_CLIENT_QUOTAS
    VERSIONS: ClassVar[VersionRange] = _VERSIONS
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, entries: QuotaEntries) -> None:
        self._access = access
        self._entries = entries

    def begin(self, request: AlterClientQuotasRequest, context: RequestContext) -> Finish:
        """Changing waits for the manager."""
        self._access.check_cluster(context.connection, AclOperation.ALTER_CONFIGS)
        if len(request.entries) > _MOST:
            raise InvalidRequestError(f"{len(request.entries)} entities are more than one request may have: {_MOST}")
        if any(len(each.entity) > _MOST_PARTS for each in request.entries):
            raise InvalidRequestError(f"an entity has {_MOST_PARTS} parts at most")
        if sum(len(each.ops) for each in request.entries) > _MOST_OPS:
            raise InvalidRequestError(f"one request has {_MOST_OPS} quotas at most")
        return partial(self._finish, request, Pace(context.connection.flow))

    async def _finish(self, request: AlterClientQuotasRequest, pace: Pace) -> AlterClientQuotasResponse:
        refused: dict[Named, KafkaError] = {}
        changes: dict[Entity, Alteration] = {}
        named: dict[Named, Entity] = {}
        asked: dict[Named, None] = {}
        for each in request.entries:
            await pace.pause()
            name = _named(each)
            asked[name] = None
            try:
                entity = entity_of(dict(name))
                if named.pop(name, None) is not None or name in refused:
                    changes.pop(entity, None)
                    raise InvalidRequestError(f"Ignoring duplicate entity {_shown(entity)}")
                changes[entity] = _alteration(each, entity)
                named[name] = entity
            except KafkaError as error:
                refused.setdefault(name, error)
        failed = await self._entries.alter(changes, validate_only=request.validate_only)
        outcomes = refused | {name: failed.get(entity) for name, entity in named.items()}
        return AlterClientQuotasResponse(entries=rows_for(list(asked), lambda name: self._result(name, outcomes[name])))

    def _result(self, name: Named, error: KafkaError | None) -> AlterClientQuotasResponseEntryData:
        row = AlterClientQuotasResponseEntryData(
            error_message=None,
            entity=[AlterClientQuotasResponseEntityData(entity_type=kind, entity_name=each) for kind, each in name],
        )
        if error is not None:
            put_error(row, error, self.ROLE)
        return row

    def fail(
        self, request: AlterClientQuotasRequest, context: RequestContext, error: KafkaError
    ) -> AlterClientQuotasResponse:
        """The error for each entity."""
        return AlterClientQuotasResponse(
            entries=rows_for(request.entries, lambda each: self._result(_named(each), error))
        )


def _named(entry: AlterClientQuotasRequestEntryData) -> Named:
    """What an entry is about; of a type that it has twice the last counts. Of too many parts it is the first ones."""
    names = {each.entity_type: each.entity_name for each in entry.entity[:_MOST_PARTS]}
    return tuple(sorted(names.items(), key=lambda item: _order(item[0])))


def _order(kind: str) -> tuple[int, str]:
    return (TYPES.index(kind), "") if kind in TYPES else (len(TYPES), kind)


def _alteration(entry: AlterClientQuotasRequestEntryData, entity: Entity) -> Alteration:
    found: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in found:
            raise InvalidRequestError(f"Ignoring duplicate entity {_shown(entity)}")
        found[op.key] = None if op.remove else op.value
    return found


def _shown(entity: Iterable[tuple[str, str | None]]) -> str:
    """As Java shows it."""
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"
