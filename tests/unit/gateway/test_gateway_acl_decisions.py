"""Decisions by access control lists, beside a plain model of what Kafka's StandardAuthorizer does."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.gateway.acl_entries import AclEntry, AclFilter
from kclient.gateway.contexts import Advertised, ConnectionContext, Principal
from kclient.gateway.security import acl_authorizer
from kclient.gateway.security.acl_authorizer import AclAuthorizer, hosts_of
from kclient.gateway.security.acl_index import AclIndex
from kclient.net.fair_queue import FairQueue
from kclient.net.memory_budget import Share

O, R = AclOperation, ResourceType  # noqa: E741
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
KINDS = (R.TOPIC, R.GROUP)
NAMES = ("a", "ab", "abc", "b", "*", "*a", "äb")
WHO = ("User:alice", "User:bob", "User:*", "Group:alice", "User:a:b", "User:")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")
OPERATIONS = (O.ALL, O.READ, O.WRITE, O.DELETE, O.ALTER, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS, O.CREATE)

entries = st.builds(
    AclEntry,
    st.sampled_from(KINDS),
    st.sampled_from((LITERAL, PREFIXED)),
    st.sampled_from(NAMES),
    st.sampled_from(WHO),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((ALLOW, ALLOW, ALLOW, DENY)),
)


def client(principal: str = "User:alice", host: str = "10.0.0.1") -> ConnectionContext:
    kind, _, name = principal.partition(":")
    flow: Any = FairQueue(lambda _: None).flow()
    share: Any = object.__new__(Share)
    return ConnectionContext(host, f"/{host}", Advertised("h", 1), flow, share, principal=Principal(name, kind))


def grants(entry: AclEntry, operation: AclOperation) -> bool:
    """Whether an entry is about an operation."""
    if entry.operation in (O.ALL, operation):
        return True
    if entry.permission is DENY:
        return False
    if operation is O.DESCRIBE:
        return entry.operation in (O.READ, O.WRITE, O.DELETE, O.ALTER)
    return operation is O.DESCRIBE_CONFIGS and entry.operation is O.ALTER_CONFIGS


def model(
    acls: Sequence[AclEntry], who: str, host: str, operation: AclOperation, kind: ResourceType, name: str,
    *, otherwise: bool = False,
) -> bool:  # fmt: skip
    """StandardAuthorizer, slowly."""
    about = [
        each for each in acls
        if each.kind is kind
        and (each.name in (name, "*") if each.pattern is LITERAL else name.startswith(each.name))
    ]  # fmt: skip
    if not about:
        return otherwise
    found = [
        each for each in about
        if each.principal in (who, "User:*") and each.host in (host, "*") and grants(each, operation)
    ]  # fmt: skip
    return bool(found) and all(each.permission is ALLOW for each in found)


def model_any(
    acls: Sequence[AclEntry], who: str, host: str, operation: AclOperation, kind: ResourceType, *, otherwise: bool
) -> bool:
    """Kafka's `authorizeByResourceType`, slowly."""
    if model(acls, who, host, operation, kind, "hardcode", otherwise=otherwise):
        return True
    mine = [
        each for each in acls
        if each.kind is kind and each.principal in (who, "User:*") and each.host in (host, "*")
        and each.operation in (operation, O.ALL)
    ]  # fmt: skip
    denied = {(each.pattern, each.name) for each in mine if each.permission is DENY}
    allowed = {(each.pattern, each.name) for each in mine if each.permission is ALLOW}
    if (LITERAL, "*") in denied:
        return False
    if (LITERAL, "*") in allowed:
        return True
    return any(
        not (pattern is LITERAL and (LITERAL, name) in denied)
        and not any((PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
        for pattern, name in allowed
    )


def filled(acls: Sequence[AclEntry], *super_users: str, allow_everyone: bool = False) -> AclAuthorizer:
    authorizer = AclAuthorizer(super_users, allow_everyone=allow_everyone)
    for each in acls:
        authorizer.index.add(each)
    return authorizer


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(acls=st.lists(entries, max_size=12), otherwise=st.booleans(), gone=st.lists(st.integers(0, 11), max_size=4))
def test_decisions_are_those_of_the_model(acls: list[AclEntry], otherwise: bool, gone: list[int]) -> None:
    authorizer = filled(acls, allow_everyone=otherwise)
    left = set(acls)
    for number in gone:
        if number < len(acls):
            assert authorizer.index.remove(acls[number]) == (acls[number] in left)
            left.discard(acls[number])
    acls = list(left)
    assert len(authorizer.index) == len(left)
    for who in ("User:alice", "User:*", "Group:alice", "User:a:b", "User:"):
        for host in ("10.0.0.1", "10.0.0.3"):
            asks = client(who, host)
            for kind in KINDS:
                for operation in (O.READ, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.CREATE):
                    for name in ("a", "abcd", "b", "c", "*", "*ab"):
                        expected = model(acls, who, host, operation, kind, name, otherwise=otherwise)
                        assert authorizer.allows(asks, operation, kind, name) == expected
                        assert authorizer.allows(asks, operation, kind, name) == expected, "from memory"
                        rule = authorizer.index.rule(asks.rights.whos, operation, kind, name)  # type: ignore[union-attr]
                        assert rule is None or rule.permission is (ALLOW if expected else DENY)
                    expected = model_any(acls, who, host, operation, kind, otherwise=otherwise)
                    assert authorizer.allows_any(asks, operation, kind) == expected


filters = st.builds(
    AclFilter,
    st.sampled_from((R.ANY, R.TOPIC, R.GROUP, R.USER, R.UNKNOWN)),
    st.sampled_from(list(PatternType)),
    st.sampled_from((None, *NAMES, "abcd", "")),
    st.sampled_from((None, *WHO)),
    st.sampled_from((None, *HOSTS)),
    st.sampled_from((O.ANY, *OPERATIONS)),
    st.sampled_from((AclPermissionType.ANY, ALLOW, DENY)),
)


def agrees(wanted: AclFilter, entry: AclEntry) -> bool:
    """Kafka's filters, in words of their own."""
    kind, pattern, name, principal, host, operation, permission = wanted
    if kind is not R.ANY and kind is not entry.kind:
        return False
    if pattern not in (PatternType.ANY, PatternType.MATCH) and pattern is not entry.pattern:
        return False
    if name is not None and name != entry.name:
        if pattern is not PatternType.MATCH:
            return False
        if not (entry.name == "*" if entry.pattern is LITERAL else name.startswith(entry.name)):
            return False
    return (
        principal in (None, entry.principal)
        and host in (None, entry.host)
        and operation in (O.ANY, entry.operation)
        and permission in (AclPermissionType.ANY, entry.permission)
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(acls=st.lists(entries, max_size=20), wanted=filters)
def test_filters_find_what_agrees(acls: list[AclEntry], wanted: AclFilter) -> None:
    index = filled(acls).index
    found = [entry for part in index.find(wanted) for entry in part]
    assert len(found) == len(set(found))
    assert set(found) == {each for each in acls if agrees(wanted, each)}
    assert [wanted.finds(each) for each in acls] == [agrees(wanted, each) for each in acls]
    for each in found:
        assert index.remove(each)
    assert [entry for part in index.find(AclFilter()) for entry in part if agrees(wanted, entry)] == []


def test_superusers_may_do_everything() -> None:
    everything = [AclEntry(R.TOPIC, LITERAL, "*", "User:*", "*", O.ALL, DENY)]
    authorizer = filled(everything, "User:root", "User:CN=a,OU=b")
    for who, may in (("User:root", True), ("User:CN=a,OU=b", True), ("Group:root", False), ("User:roo", False)):
        assert authorizer.allows(client(who), O.ALTER, R.TOPIC, "t") == may
        assert authorizer.allows_any(client(who), O.ALTER, R.TOPIC) == may
        authorizer.unreadable = True
        authorizer.changed()
        assert authorizer.allows(client(who), O.ALTER, R.TOPIC, "t") == may
        authorizer.unreadable = False
        authorizer.changed()


def test_nobody_else_may_do_anything_while_an_entry_cannot_be_read() -> None:
    authorizer = filled([AclEntry(R.TOPIC, LITERAL, "t", "User:*", "*", O.READ, ALLOW)], allow_everyone=True)
    asks = client()
    assert authorizer.allows(asks, O.READ, R.TOPIC, "t")
    assert authorizer.allows(asks, O.READ, R.TOPIC, "other")
    authorizer.unreadable = True
    authorizer.changed()
    assert not authorizer.allows(asks, O.READ, R.TOPIC, "t")
    assert not authorizer.allows(asks, O.READ, R.TOPIC, "other")
    assert not authorizer.allows_any(asks, O.READ, R.TOPIC)


@pytest.mark.parametrize(
    ("client_host", "hosts"),
    [
        ("/127.0.0.1", ("127.0.0.1",)),
        ("/::1", ("0:0:0:0:0:0:0:1", "::1")),
        ("/2001:db8::ff", ("2001:db8:0:0:0:0:0:ff", "2001:db8::ff")),
        ("/::ffff:10.0.0.1", ("10.0.0.1",)),
        ("/fe80::1%eth0", ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1%eth0")),
        ("/memory:store", ("127.0.0.1",)),
        ("/unix:/tmp/socket", ("127.0.0.1",)),
    ],
)
def test_hosts(client_host: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of(client_host) == hosts


def test_what_is_remembered_goes_with_the_principal() -> None:
    """A connection may become somebody else's: what was decided for the other one does not count."""
    authorizer = filled([AclEntry(R.TOPIC, LITERAL, "t", "User:alice", "*", O.READ, ALLOW)])
    asks = client("User:alice")
    assert authorizer.allows(asks, O.READ, R.TOPIC, "t")
    asks.principal = Principal("bob")
    assert not authorizer.allows(asks, O.READ, R.TOPIC, "t")
    asks.principal = Principal("alice")
    assert authorizer.allows(asks, O.READ, R.TOPIC, "t")


@pytest.mark.slow
def test_memory_for_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_authorizer, "_MEMORY", 100_000)
    authorizer = filled([AclEntry(R.TOPIC, PREFIXED, "t", "User:*", "*", O.READ, ALLOW)])
    asks = client()
    authorizer.allows(asks, O.READ, R.TOPIC, "t")
    tracemalloc.start()
    try:
        for number in range(5_000):
            assert authorizer.allows(asks, O.READ, R.TOPIC, f"t{number}" * 10)
            assert not authorizer.allows(asks, O.READ, R.TOPIC, f"n{number}" + "x" * 30_000)
            assert not authorizer.allows(client(f"User:{number}"), O.WRITE, R.TOPIC, "t")
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_connections_that_ask_no_more_keep_no_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each could keep as much as there is for all."""
    monkeypatch.setattr(acl_authorizer, "_MEMORY", 100_000)
    authorizer = filled([])
    connections = [client() for _ in range(100)]
    tracemalloc.start()
    try:
        for number, each in enumerate(connections):
            for name in range(400):
                assert not authorizer.allows(each, O.READ, R.TOPIC, f"{number}-{name}" * 10)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_hundred_thousand_entries() -> None:
    """A decision looks nothing up that is not about the resource: the times are far above what it takes."""
    index = AclIndex()
    for number in range(25_000):
        index.add(AclEntry(R.TOPIC, LITERAL, f"topic-{number}", f"User:u{number % 100}", "*", O.READ, ALLOW))
        index.add(AclEntry(R.TOPIC, PREFIXED, f"p{number}-", f"User:u{number % 100}", "*", O.READ, ALLOW))
        index.add(AclEntry(R.TOPIC, LITERAL, "*", f"User:v{number}", "*", O.READ, ALLOW))
        index.add(AclEntry(R.TOPIC, LITERAL, "one", f"User:u{number % 100}", f"10.0.{number}", O.WRITE, DENY))
    assert len(index) == 100_000
    whos = (("User:u7", "*"), ("User:u7", "10.0.0.1"), ("User:*", "*"), ("User:*", "10.0.0.1"))
    assert index.decide(whos, O.READ, R.TOPIC, "topic-107")
    assert not index.decide(whos, O.READ, R.TOPIC, "topic-108")
    assert index.decide(whos, O.READ, R.TOPIC, "p107-and-more")
    began = time.perf_counter()
    for _ in range(1000):
        index.decide(whos, O.READ, R.TOPIC, "p107-and-more")
        index.decide(whos, O.WRITE, R.TOPIC, "one")
        index.decide_any(whos, O.READ, R.TOPIC)
    assert time.perf_counter() - began < 2.0
