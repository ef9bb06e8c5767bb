"""`kclient acls`: list, add and remove entries of access control lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.admin import AclBinding, AclBindingFilter
from kclient.admin.acl_types import ANY_HOST, CLUSTER_NAME
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.sheets import Sheet, sheet_of
from kclient.sync import Admin

E = TypeVar("E", PatternType, AclOperation)

_COLUMNS = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]
_O = AclOperation
_MOST: Final = 10_000
"""Entries that one request may remove, of brokers and of gateways."""
_AT_ONCE: Final = 1000
"""Filters that a gateway takes in one request."""


@dataclass(frozen=True)
class Resources:
    """What the options name.

    Attributes:
        topics: names of topics.
        groups: ids of groups.
        transactional_ids: of producers.
        tokens: ids of delegation tokens.
        users: whose tokens.
        cluster: whether the cluster is meant, too.
    """

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    tokens: Sequence[str] = ()
    users: Sequence[str] = ()
    cluster: bool = False

    def __iter__(self) -> Iterator[tuple[ResourceType, str]]:
        for kind, names in (
            (ResourceType.TOPIC, self.topics),
            (ResourceType.GROUP, self.groups),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_ids),
            (ResourceType.DELEGATION_TOKEN, self.tokens),
            (ResourceType.USER, self.users),
            (ResourceType.CLUSTER, [CLUSTER_NAME] if self.cluster else []),
        ):
            for name in dict.fromkeys(names):
                yield kind, name


@dataclass(frozen=True)
class Rights:
    """Who may, or may not, do what.

    Attributes:
        allow: principals.
        deny: principals.
        operations: what, as options name it.
        hosts: from which addresses; all if there are none.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    operations: Sequence[str] = ()
    hosts: Sequence[str] = ()

    def principals(self) -> list[tuple[AclPermissionType, str]]:
        """Who, and whether they may.

        Raises:
            UsageError: One is not written as `User:alice`.
        """
        found = [(AclPermissionType.ALLOW, name) for name in self.allow]
        found += [(AclPermissionType.DENY, name) for name in self.deny]
        for _, name in found:
            kind, colon, rest = name.partition(":")
            if not (kind and colon and rest):
                raise UsageError(f"a principal is given as TYPE:NAME, as in User:alice, not {name!r}")
        return list(dict.fromkeys(found))


def _named(kind: type[E], text: str, option: str) -> E:
    wanted = text.replace("-", "").replace("_", "").lower()
    for each in kind:
        if each.name.replace("_", "").lower() == wanted and each.name != "UNKNOWN":
            return each
    names = ", ".join(each.name.lower().replace("_", "-") for each in kind if each.name not in ("UNKNOWN", "ANY"))
    raise UsageError(f"{option} is one of {names}, not {text!r}")


def _operation(text: str) -> AclOperation:
    found = _named(AclOperation, text, "--operation")
    if found is AclOperation.ANY:
        raise UsageError("--operation any is not an operation; all is the one that stands for the others")
    return found


def _sheet(acls: Sequence[AclBinding]) -> Sheet:
    rows = [
        {
            "resource": acl.resource_type.name.lower(),
            "name": acl.resource_name,
            "pattern": acl.pattern_type.name.lower(),
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name.lower(),
            "permission": acl.permission_type.name.lower(),
        }
        for acl in acls
    ]
    return sheet_of(f"{len(rows)} ACLs", _COLUMNS, rows, "acls")


def filters_of(resources: Resources, rights: Rights, pattern: str) -> list[AclBindingFilter]:
    """What the options ask for; without any it is everything.

    Raises:
        UsageError: An option's value cannot be.
    """
    kind = _named(PatternType, pattern, "--pattern")
    places: list[tuple[ResourceType, str | None]] = list(resources) or [(ResourceType.ANY, None)]
    people: list[tuple[AclPermissionType, str | None]] = [*rights.principals()] or [(AclPermissionType.ANY, None)]
    operations = [_operation(text) for text in rights.operations] or [AclOperation.ANY]
    hosts: list[str | None] = [*rights.hosts] or [None]
    return [
        AclBindingFilter(
            resource_type=resource_type, resource_name=name, pattern_type=kind, principal=principal,
            permission_type=permission, operation=operation, host=host,
        )
        for resource_type, name in places
        for permission, principal in people
        for operation in operations
        for host in hosts
    ]  # fmt: skip


def _found(admin: Admin, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
    return list(dict.fromkeys(acl for each in filters for acl in admin.describe_acls(each)))


def listed(admin: Admin, filters: Sequence[AclBindingFilter]) -> Sheet:
    """The entries that one of the filters finds."""
    return _sheet(_found(admin, filters))


def bindings_of(
    resources: Resources, rights: Rights, *, prefixed: bool, producer: bool, consumer: bool, idempotent: bool
) -> list[AclBinding]:
    """The entries that the options ask for.

    Args:
        resources: On what.
        rights: Who, and what.
        prefixed: Whether the names are beginnings of names.
        producer: What producers need, instead of operations.
        consumer: What consumers need, instead of operations.
        idempotent: Whether producers before Kafka 3.0 are meant, too: their idempotence was a right of the cluster.

    Raises:
        UsageError: Something is missing, or is too much.
    """
    if not rights.principals():
        raise UsageError("who is meant? Give --allow User:NAME, or --deny User:NAME")
    wanted: list[tuple[ResourceType, str, AclOperation]] = []
    if producer or consumer:
        wanted = list(_for_clients(resources, rights, producer=producer, consumer=consumer, idempotent=idempotent))
    else:
        if idempotent:
            raise UsageError("--idempotent goes with --producer")
        if not rights.operations or not list(resources):
            raise UsageError("give --operation, and on what: --topic, --group, --cluster …; or --producer, --consumer")
        wanted = [(kind, name, _operation(text)) for kind, name in resources for text in rights.operations]
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return [
        AclBinding(
            resource_type=kind, resource_name=name, operation=operation, permission_type=permission,
            principal=principal, host=host,
            pattern_type=PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern,
        )
        for kind, name, operation in dict.fromkeys(wanted)
        for permission, principal in rights.principals()
        for host in (rights.hosts or [ANY_HOST])
    ]  # fmt: skip


def _for_clients(
    resources: Resources, rights: Rights, *, producer: bool, consumer: bool, idempotent: bool
) -> Iterator[tuple[ResourceType, str, AclOperation]]:
    """The same entries as `kafka-acls` makes for these options."""
    if rights.operations:
        raise UsageError("--operation and --producer or --consumer exclude each other")
    if rights.deny:
        raise UsageError("--producer and --consumer allow: --deny needs --operation")
    if not resources.topics:
        raise UsageError("--producer and --consumer need --topic")
    if consumer and not resources.groups:
        raise UsageError("--consumer needs --group, too")
    if (resources.groups and not consumer) or (resources.transactional_ids and not producer):
        raise UsageError("--group goes with --consumer, and --transactional-id with --producer")
    if resources.cluster or resources.tokens or resources.users:
        raise UsageError("--producer and --consumer are about topics, groups and transactional ids")
    if idempotent and not producer:
        raise UsageError("--idempotent goes with --producer")
    for name in resources.topics:
        for operation in [_O.WRITE, _O.CREATE] * producer + [_O.READ] * consumer + [_O.DESCRIBE]:
            yield ResourceType.TOPIC, name, operation
    for name in resources.transactional_ids:
        yield ResourceType.TRANSACTIONAL_ID, name, _O.WRITE
        yield ResourceType.TRANSACTIONAL_ID, name, _O.DESCRIBE
    for name in resources.groups:
        yield ResourceType.GROUP, name, _O.READ
    if idempotent:
        yield ResourceType.CLUSTER, CLUSTER_NAME, _O.IDEMPOTENT_WRITE


def add(bindings: Sequence[AclBinding], settings: dict[str, object], *, dry_run: bool) -> int:
    """Add entries, and print them."""
    if not dry_run:
        with Admin(settings) as admin:
            admin.create_acls(bindings)
    _tell(bindings, "added", dry_run=dry_run)
    return 0


def remove(filters: Sequence[AclBindingFilter], settings: dict[str, object], *, everything: bool, dry_run: bool) -> int:
    """Remove the entries that one of the filters finds, and print them."""
    of_all = AclBindingFilter(pattern_type=filters[0].pattern_type) in filters
    if of_all and not everything:
        raise UsageError("this would remove all ACLs: say which, or give --all")
    if everything and not of_all:
        raise UsageError("--all and what says which ACLs exclude each other")
    with Admin(settings) as admin:
        if dry_run:
            found = _found(admin, filters)
        else:
            first = _some_of_many(admin, filters) if everything else []
            found = list(dict.fromkeys([*first, *_gone(admin, filters)]))
    _tell(found, "removed", dry_run=dry_run)
    return 0


def _gone(admin: Admin, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
    return [acl for found in admin.delete_acls(filters).values() for acl in found]


def _some_of_many(admin: Admin, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
    """Remove so many, each by its own filter, that one request may remove the others; returns those."""
    many = _found(admin, filters)
    return [
        acl
        for start in range(0, len(many) - _MOST // 2, _AT_ONCE)
        for acl in _gone(admin, [each.as_filter() for each in many[start : start + _AT_ONCE]])
    ]


def _tell(acls: Sequence[AclBinding], done: str, *, dry_run: bool) -> None:
    if dry_run:
        output.warn("nothing was changed: this is a dry run")
    sheet = _sheet(acls)
    output.table(sheet.columns, sheet.rows, title=f"{len(acls)} ACLs {f'would be {done}' if dry_run else done}")
