"""Quotas of clients: which there are, setting and removing them (KIP-546)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from kclient.admin.answers import as_told, failure
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.quota_types import (
    TYPES,
    ClientQuotaEntity,
    ClientQuotaFilter,
    QuotaName,
    as_quota_filter,
    as_quotas,
)
from kclient.admin.types import raise_failures
from kclient.cluster import Trial
from kclient.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    OpData,
)

logger: logging.Logger = logging.getLogger("kclient.admin")

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_ATTRIBUTES = {kind: attribute for attribute, kind in TYPES.items()}


class QuotaOperations(AdminBase):
    """The admin client's calls about quotas."""

    async def describe_client_quotas(
        self, quota_filter: ClientQuotaFilter | None = None, *, timeout: float | None = None
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """The quotas that a filter finds: numbers by name, of each entity (KIP-546; Kafka 2.6).

        Names are `producer_byte_rate`, `consumer_byte_rate` (bytes a second), `request_percentage` (of a thread),
        `controller_mutation_rate` (partitions a second) and `connection_creation_rate` (connections a second).

        Args:
            quota_filter: which; None for all.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            ClusterAuthorizationError: this user may not describe the cluster's settings.
            UnsupportedVersionError: the brokers have none (before Kafka 2.6).
            TypeError: this is no filter.
        """
        wanted = as_quota_filter(quota_filter)
        what = "Describing client quotas"
        request = DescribeClientQuotasRequest(components=list(_components(wanted)), strict=wanted.strict)

        response = await self._answer_of_controller(
            lambda _: request, DescribeClientQuotasResponse, timeout=timeout, what=what
        )
        found = {}
        for entry in response.entries or ():
            entity = _entity_of(entry.entity)
            if entity is None:
                logger.warning("a quota is left out: this release knows no entity with %s", entry.entity)
            else:
                found[entity] = {each.key: each.value for each in sorted(entry.values, key=lambda each: each.key)}
        return dict(sorted(found.items(), key=lambda item: str(item[0])))

    async def alter_client_quotas(
        self,
        quotas: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sets and removes quotas, and leaves the others as they are (KIP-546; Kafka 2.6).

        Args:
            quotas: by entity and name: a number, or None to remove it.
            validate_only: check everything and change nothing.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            InvalidRequestError: there is no quota of this name, not for this entity, or not of this size.
            ClusterAuthorizationError: this user may not alter the cluster's settings.
            UnsupportedVersionError: the brokers have none (before Kafka 2.6).
            PartialFailureError: the quotas of several entities were refused; the others were set.
            TypeError, ValueError: these are no numbers by name by entity.
        """
        wanted = as_quotas(quotas)
        what = "Altering client quotas"

        async def ask(
            trial: Trial, left: Mapping[ClientQuotaEntity, Mapping[str, float | None]]
        ) -> Mapping[ClientQuotaEntity, Outcome]:
            request = AlterClientQuotasRequest(
                entries=[
                    AlterClientQuotasRequestEntryData(
                        entity=list(_entity_data(entity)),
                        ops=[
                            OpData(key=name, value=0.0 if value is None else value, remove=value is None)
                            for name, value in values.items()
                        ],
                    )
                    for entity, values in left.items()
                ],
                validate_only=validate_only,
            )
            response = await self._ask_controller(trial, lambda _: request, AlterClientQuotasResponse, timeout)
            return {
                entity: failure(row.error_code, f"Quota of {entity}", row.error_message)
                for row in response.entries
                if (entity := _entity_of(row.entity)) is not None
            }

        raise_failures(what, await self._each(wanted, ask, timeout=timeout, what=what))


def _components(wanted: ClientQuotaFilter) -> Iterator[ComponentData]:
    for attribute, kind in TYPES.items():
        name = getattr(wanted, attribute)
        if name is QuotaName.ANY:
            yield ComponentData(entity_type=kind, match_type=_ANY, match=None)
        elif name is QuotaName.DEFAULT:
            yield ComponentData(entity_type=kind, match_type=_DEFAULT, match=None)
        elif name is not None:
            yield ComponentData(entity_type=kind, match_type=_EXACT, match=name)


def _entity_data(entity: ClientQuotaEntity) -> Iterator[AlterClientQuotasRequestEntityData]:
    for attribute, kind in TYPES.items():
        name = getattr(entity, attribute)
        if name is not None:
            given = None if name is QuotaName.DEFAULT else name
            yield AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=given)


def _entity_of(
    rows: list[DescribeClientQuotasResponseEntityData] | list[AlterClientQuotasResponseEntityData],
) -> ClientQuotaEntity | None:
    """The entity that a broker names; None if it has a type that only newer releases know."""
    if not rows or any(row.entity_type not in _ATTRIBUTES for row in rows):
        return None
    names = {_ATTRIBUTES[row.entity_type]: row.entity_name for row in rows}
    told = {each: QuotaName.DEFAULT if name is None else name for each, name in names.items()}
    return as_told(ClientQuotaEntity, **{**dict.fromkeys(_ATTRIBUTES.values()), **told})
