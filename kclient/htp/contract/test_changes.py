"""Following what changes in the key-value part: nothing is missed, in order, and who is too far behind is told so."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import anyio
import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.report import NOT_TESTABLE, VERDICT
from kclient.htp.contract.sandbox import ROWS, Sandbox
from kclient.htp.errors import ConflictError, HtpError, StoreClosedError, TokenTooOldError
from kclient.htp.port import Change, Manager

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("changes")]


async def begin(sandbox: Sandbox) -> str:
    """A token that stands for now; what is followed for ever is the same prefix in every test."""
    page = await sandbox.manager.changes([ROWS])
    assert (page.changes, page.more) == ([], False)
    return page.token


async def told(sandbox: Sandbox, token: str, *prefixes: str, limit: int = 1000) -> list[Change]:
    """All changes of this test's rows since a token, read in pages; the keys begin after what all have in common."""
    found = await all_pages(sandbox.manager, [sandbox.key(each) for each in prefixes or [""]], token, limit)
    return [change._replace(key=change.key.removeprefix(sandbox.rows)) for change in found]


async def all_pages(manager: Manager, prefixes: Sequence[str], token: str, limit: int = 1000) -> list[Change]:
    """All changes since a token."""
    found: list[Change] = []
    while True:
        page = await manager.changes(prefixes, token, limit=limit)
        assert len(page.changes) <= limit
        found += page.changes
        if not page.more:
            return found
        assert page.token != token, "following goes on"
        token = page.token


async def commit(sandbox: Sandbox, **writes: bytes | None) -> int:
    """Write rows; `_` stands for `/`."""
    return await sandbox.manager.commit({sandbox.key(key.replace("_", "/")): value for key, value in writes.items()})


# --- what is told, and in which order ---


async def test_commits_are_told_in_their_order(sandbox: Sandbox) -> None:
    await commit(sandbox, a_old=b"0", a_gone=b"0")
    token = await begin(sandbox)
    assert await told(sandbox, token) == []
    first = await commit(sandbox, a_z=b"1", a_b=b"1", b=b"1", c=b"1")
    await commit(sandbox, b=b"2")
    second = await commit(sandbox, a_old=b"2", a_gone=None, a_never=None)
    expected = [
        Change("a/b", b"1", first),
        Change("a/z", b"1", first),
        Change("c", b"1", first),
        Change("a/gone", None, second),
        Change("a/old", b"2", second),
    ]
    for limit in (1, 2, 3, 4, 5, 6):
        assert await told(sandbox, token, "a/", "c", limit=limit) == expected, limit
    page = await sandbox.manager.changes([sandbox.key("a/")], token)
    assert not page.more
    assert await told(sandbox, page.token, "a/") == []
    third = await commit(sandbox, a_=b"3")
    assert await told(sandbox, page.token, "a/") == [Change("a/", b"3", third)]


async def test_of_many_changes_of_a_key_the_last_is_told(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    for number in range(20):
        one = await commit(sandbox, a_1=b"%d" % number, b=b"")
        two = await commit(sandbox, a_2=b"%d" % number)
    assert await told(sandbox, token, "a/") == [Change("a/1", b"19", one), Change("a/2", b"19", two)]


async def test_what_was_made_anew_is_told_behind_the_end_of_the_old_one(sandbox: Sandbox) -> None:
    """Nobody takes it for the one of before."""
    await commit(sandbox, a_1=b"old")
    token = await begin(sandbox)
    for _ in range(3):
        gone = await commit(sandbox, a_1=None)
        await commit(sandbox, a_1=b"new")
    between = await commit(sandbox, a_2=b"2")
    last = await commit(sandbox, a_1=b"newer")
    expected = [Change("a/1", None, gone), Change("a/2", b"2", between), Change("a/1", b"newer", last)]
    assert await told(sandbox, token) == await told(sandbox, token, limit=1) == expected
    gone = await commit(sandbox, a_1=None)
    assert await told(sandbox, token) == [Change("a/2", b"2", between), Change("a/1", None, gone)]


async def test_each_goes_on_where_it_was(sandbox: Sandbox) -> None:
    tokens = [await begin(sandbox)]
    for number in range(5):
        await commit(sandbox, **{f"a_{number}": b""})
        tokens.append(await begin(sandbox))
    for number, token in enumerate(tokens):
        assert [change.key for change in await told(sandbox, token)] == [f"a/{each}" for each in range(number, 5)]


async def test_a_commit_that_was_refused_tells_nothing(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    with pytest.raises(ConflictError):
        await sandbox.manager.commit({sandbox.key("a"): b"1"}, {sandbox.key("b"): 7})
    assert await told(sandbox, token) == []


async def test_prefixes_to_the_end_of_what_text_can_be(sandbox: Sandbox) -> None:
    last = "\U0010ffff"
    token = await begin(sandbox)
    keys = sorted(["a", "a" + last, "a" + last + "b", "a" + last * 3, "b", "\ud7ff", "\ud7ffx", "\ue000", last * 2])
    await sandbox.manager.commit({sandbox.key(key): b"" for key in keys})
    for prefix in ("", "a", "a" + last, "a" + last * 2, "\ud7ff", last, last * 2):
        found = [change.key for change in await told(sandbox, token, prefix, limit=2)]
        assert found == [key for key in keys if key.startswith(prefix)], ascii(prefix)


@pytest.mark.parametrize("count", [101, 20_000])
async def test_very_many_prefixes(sandbox: Sandbox, count: int) -> None:
    """More than one statement of a database can name; in no order, and some below others."""
    token = await begin(sandbox)
    prefixes = [f"a/{number:05}" for number in reversed(range(1, count))] + ["a/00007/x", "a/00007"]
    keys = ["a/", "a/00000", "a/00001", "a/00007", "a/00007/x", "a/00007/y", f"a/{count - 1:05}z", f"a/{count:05}"]
    first = await sandbox.manager.commit({sandbox.key(key): b"" for key in [*keys, "b"]})
    second = await sandbox.manager.commit({sandbox.key("a/00001"): None, sandbox.key("a/"): None})
    expected = [Change(key, b"", first) for key in keys[3:-1]] + [Change("a/00001", None, second)]
    assert await told(sandbox, token, *prefixes, limit=2) == expected


async def test_reading_page_by_page_and_following_misses_nothing(sandbox: Sandbox) -> None:
    """Whatever is written between the pages, and behind the place that reading has reached."""
    await sandbox.manager.commit({sandbox.key(f"a/{number:03}"): b"0" for number in range(300)})
    token = await begin(sandbox)
    replica: dict[str, bytes] = {}
    versions: dict[str, int] = {}
    after = ""
    while page := await sandbox.manager.scan(sandbox.key("a/"), after=after, limit=70):
        after = next(reversed(page))
        replica |= {key.removeprefix(sandbox.rows): row.value for key, row in page.items()}
        versions |= {key.removeprefix(sandbox.rows): row.version for key, row in page.items()}
        writes = {"a/000": None, "a/100": b"1", "a/299": None, "a/299+": b"1", f"a/00{len(replica)}": b"1"}
        await sandbox.manager.commit({sandbox.key(key): value for key, value in writes.items()})
    for change in await told(sandbox, token, limit=3):
        if change.version <= versions.get(change.key, 0):
            assert replica[change.key] == change.value, "the scan has shown it"
        elif change.value is None:
            replica.pop(change.key, None)
        else:
            replica[change.key] = change.value
    assert replica == {key: row.value for key, row in (await sandbox.all_rows()).items()}


# --- waiting ---


async def test_who_waits_is_told_at_once(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    found: list[Change] = []

    async def wait() -> None:
        found.extend((await sandbox.manager.changes([sandbox.key("a/")], token, wait=300)).changes)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for _ in range(20):
                await commit(sandbox, b=b"1")
            assert not found, "nothing of that concerns it"
            version = await commit(sandbox, a_1=b"1")
    assert found == [Change(sandbox.key("a/1"), b"1", version)]


async def test_what_is_there_already_is_not_waited_for(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    await commit(sandbox, a=b"1")
    with anyio.fail_after(60):
        assert len((await sandbox.manager.changes([sandbox.rows], token, wait=300)).changes) == 1
        assert (await sandbox.manager.changes([ROWS], wait=300)).changes == []


async def test_a_wait_ends_with_its_time(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    for _ in range(3):
        page = await sandbox.manager.changes([sandbox.rows], token, wait=0.01)
        assert (page.changes, page.more) == ([], False)
        token = page.token
    await commit(sandbox, a=b"1")
    assert len(await told(sandbox, token)) == 1


async def test_a_wait_may_be_cancelled(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    with anyio.move_on_after(0.02) as scope:
        await sandbox.manager.changes([sandbox.rows], token, wait=300)
    assert scope.cancelled_caught
    version = await commit(sandbox, a=b"1")
    assert await told(sandbox, token) == [Change("a", b"1", version)]


async def test_many_wait(sandbox: Sandbox) -> None:
    prefixes = [sandbox.key(f"{number}/") for number in range(20)]
    token = await begin(sandbox)
    found: list[str] = []

    async def wait(prefix: str) -> None:
        found.extend(change.key for change in (await sandbox.manager.changes([prefix], token, wait=300)).changes)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for prefix in prefixes:
                group.start_soon(wait, prefix)
            for prefix in reversed(prefixes):
                await sandbox.manager.commit({prefix: b""})
    assert sorted(found) == sorted(prefixes)


async def test_a_store_that_is_closed_lets_nobody_wait(sandbox: Sandbox) -> None:
    token, manager, ended = await begin(sandbox), sandbox.manager, 0

    async def wait() -> None:
        nonlocal ended
        with pytest.raises(StoreClosedError):
            await manager.changes([sandbox.rows], token, wait=300)
        ended += 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await sandbox.close()
    assert ended == 3


# --- tokens ---


async def test_tokens_outlive_the_opening_of_the_store(sandbox: Sandbox) -> None:
    token = await begin(sandbox)
    await commit(sandbox, a_1=b"1", a_2=b"2", a_3=b"3")
    page = await sandbox.manager.changes([sandbox.rows], token, limit=1)
    assert page.more
    await sandbox.reopen()
    last = await commit(sandbox, a_2=None)  # nobody has asked for anything yet
    found = await told(sandbox, page.token)
    assert [(change.key, change.value) for change in found] == [("a/3", b"3"), ("a/2", None)]
    assert [change.key for change in await told(sandbox, token)] == ["a/1", "a/3", "a/2"]
    assert found[-1].version == last


async def test_a_token_of_before_a_prefix_was_followed_is_too_old(
    sandbox: Sandbox, request: pytest.FixtureRequest
) -> None:
    token, prefix = await begin(sandbox), f"contract-{uuid.uuid4().hex}/"
    with pytest.raises(TokenTooOldError):
        await sandbox.manager.changes([prefix], token)
    await sandbox.manager.commit({prefix + "a": b"0"})  # which nobody records
    try:
        page = await sandbox.manager.changes([prefix])
    except HtpError as error:
        request.node.user_properties.append((VERDICT, NOT_TESTABLE))
        pytest.skip(f"{NOT_TESTABLE}: no further prefix can be followed in this store: {error}")
    with pytest.raises(TokenTooOldError):
        await sandbox.manager.changes([prefix], token)
    version = await sandbox.manager.commit({prefix + "a": b"1"})
    assert await all_pages(sandbox.manager, [prefix], page.token) == [Change(prefix + "a", b"1", version)]
    await sandbox.manager.commit({prefix + "a": None})
    found = await all_pages(sandbox.manager, [prefix + "a"], page.token)
    assert [change.value for change in found] == [None], "the shorter one is followed"


async def test_who_is_far_behind_is_told_everything_or_to_scan_again(sandbox: Sandbox) -> None:
    """How many changes are kept is the backend's choice; that some are missing it has to say."""
    token = await begin(sandbox)
    for number in range(15):
        await sandbox.manager.commit({sandbox.key(f"{number:02}/{each:04}"): b"" for each in range(1000)})
        near = await begin(sandbox)
    version = await commit(sandbox, last=b"1")
    assert await told(sandbox, near) == [Change("last", b"1", version)], "who is near is told"
    try:
        found = await told(sandbox, token)
    except TokenTooOldError:
        return
    assert [change.key for change in found[:-1]] == [
        f"{number:02}/{each:04}" for number in range(15) for each in range(1000)
    ]


@pytest.mark.parametrize("token", ["", "x", "no token", "1.x"])
async def test_what_is_no_token_is_refused(sandbox: Sandbox, token: str) -> None:
    await begin(sandbox)
    with pytest.raises(ValueError):
        await sandbox.manager.changes([ROWS], token)


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_without_changes_is_refused(sandbox: Sandbox, limit: int) -> None:
    """Its token would stand for what it did not tell."""
    token = await begin(sandbox)
    await commit(sandbox, a=b"1")
    for since in (token, None):
        with pytest.raises(ValueError):
            await sandbox.manager.changes([ROWS], since, limit=limit)
