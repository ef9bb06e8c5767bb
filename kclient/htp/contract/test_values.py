"""The key-value part: versions, compare-and-set over several keys, and reading page by page."""

from __future__ import annotations

import anyio
import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import ConflictError, FencedError
from kclient.htp.rows import scan_pages

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("values")]


async def test_values_are_written_and_deleted(sandbox: Sandbox) -> None:
    manager = sandbox.manager
    a, b, c, missing = (sandbox.key(name) for name in ("a", "b", "c", "missing"))
    assert await manager.get([a, b]) == {}
    first = await manager.commit({a: b"1", b: b""})
    second = await manager.commit({a: b"2", c: b"3"})
    assert second > first > 0
    assert await manager.get([a, b, missing]) == {a: (b"2", second), b: (b"", first)}
    third = await manager.commit({a: None, missing: None})
    assert third > second
    assert await manager.get([a, b, c]) == {b: (b"", first), c: (b"3", second)}
    assert await manager.commit({a: b"4"}) > third


async def test_values_are_bytes_of_any_kind(sandbox: Sandbox) -> None:
    values = [bytes(range(256)), b"\0", b"\xff" * 3, b"x" * 300_000]
    await sandbox.manager.commit({sandbox.key(str(number)): each for number, each in enumerate(values)})
    await sandbox.reopen()
    assert [found.value for found in (await sandbox.all_rows()).values()] == values


async def test_compare_and_set_over_several_keys(sandbox: Sandbox) -> None:
    manager = sandbox.manager
    a, b, new, missing = (sandbox.key(name) for name in ("a", "b", "new", "missing"))
    version = await manager.commit({a: b"1", b: b"1"}, {a: 0, b: 0})
    other = await manager.commit({missing: None})
    with pytest.raises(ConflictError) as info:
        await manager.commit({a: b"2", new: b"2"}, {a: version, b: other + 1})
    assert (info.value.key, info.value.expected, info.value.found) == (b, other + 1, version)
    for expect in ({a: 0}, {missing: version}, {a: version, missing: version}):
        with pytest.raises(ConflictError):
            await manager.commit({a: b"2", new: None}, expect)
    with pytest.raises(ConflictError):
        await manager.commit({}, {missing: version})
    assert await sandbox.all_rows() == {"a": (b"1", version), "b": (b"1", version)}, "nothing was written"
    assert await manager.commit({a: b"2"}, {a: version, b: version, missing: 0}) > version


async def test_a_value_that_was_made_anew_has_another_version(sandbox: Sandbox) -> None:
    key = sandbox.key("a")
    version = await sandbox.manager.commit({key: b"1"})
    await sandbox.manager.commit({key: None})
    await sandbox.manager.commit({key: b"1"})
    with pytest.raises(ConflictError):
        await sandbox.manager.commit({key: b"2"}, {key: version})


async def test_of_concurrent_commits_one_wins(sandbox: Sandbox) -> None:
    counter, beside = sandbox.key("counter"), sandbox.key("beside")
    version = await sandbox.manager.commit({counter: b"0"})
    won: list[bytes] = []

    async def attempt(content: bytes) -> None:
        try:
            await sandbox.manager.commit({counter: content, beside: content}, {counter: version})
        except ConflictError:
            return
        won.append(content)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(attempt, b"%d" % number)
    assert len(won) == 1
    assert [found.value for found in (await sandbox.all_rows()).values()] == won * 2


async def test_every_increment_counts(sandbox: Sandbox) -> None:
    counter = sandbox.key("counter")
    await sandbox.manager.commit({counter: b"0"})

    async def increment() -> None:
        for _ in range(5):
            while True:
                found = (await sandbox.manager.get([counter]))[counter]
                try:
                    await sandbox.manager.commit({counter: b"%d" % (int(found.value) + 1)}, {counter: found.version})
                except ConflictError:
                    continue
                break

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(increment)
    assert (await sandbox.manager.get([counter]))[counter].value == b"25"


async def test_many_keys_in_one_commit(sandbox: Sandbox) -> None:
    keys = {sandbox.key(f"{number:05}"): b"%d" % number for number in range(2500)}
    version = await sandbox.manager.commit(keys, dict.fromkeys(keys, 0))
    found = await sandbox.manager.get(keys)
    assert {key: each.value for key, each in found.items()} == keys
    assert {each.version for each in found.values()} == {version}
    last = next(reversed(keys))
    with pytest.raises(ConflictError):
        await sandbox.manager.commit(dict.fromkeys(keys), {**dict.fromkeys(keys, version), last: version + 1})
    assert len(await sandbox.all_rows()) == 2500
    await sandbox.manager.commit(dict.fromkeys(keys), dict.fromkeys(keys, version))
    assert await sandbox.all_rows() == {}


async def test_a_commit_under_an_older_epoch_of_a_lease_is_refused(sandbox: Sandbox) -> None:
    manager, name, key = sandbox.manager, sandbox.key("lease"), sandbox.key("a")
    lease = await manager.acquire(name, "one", 0)  # it has run out, and is nobody else's
    version = await manager.commit({key: b"1"}, lease=lease)
    newer = await manager.acquire(name, "one", 60)
    for expect in (None, {key: version}):
        with pytest.raises(FencedError):
            await manager.commit({key: b"2"}, expect, lease=lease)
    assert (await manager.get([key]))[key].value == b"1"
    await manager.commit({key: b"3"}, {key: version}, lease=newer)


async def test_values_and_versions_are_there_when_opened_again(sandbox: Sandbox) -> None:
    key = sandbox.key("a")
    version = await sandbox.manager.commit({key: b"1"})
    await sandbox.reopen()
    assert await sandbox.manager.get([key]) == {key: (b"1", version)}
    assert await sandbox.manager.commit({key: b"2"}, {key: version}) > version


# --- reading page by page ---


async def test_keys_are_sorted_by_code_points(sandbox: Sandbox) -> None:
    keys = ["a", "a/", "a/1", "a/10", "a/2", "a/é", "a/😀", "a/\uffee", "a0", "A/1", "b", "%", "a/%", "a/_"]
    await sandbox.manager.commit({sandbox.key(key): key.encode() for key in keys})
    assert list(await sandbox.all_rows()) == sorted(keys)
    for prefix in ("a/", "a/%", "a/1", "nothing"):
        found = await sandbox.all_rows(prefix)
        assert list(found) == sorted(key for key in keys if key.startswith(prefix))
        assert all(row.value == key.encode() for key, row in found.items())


async def test_prefixes_to_the_end_of_what_text_can_be(sandbox: Sandbox) -> None:
    """What comes last behind a prefix is found, and what comes next is not."""
    last = "\U0010ffff"
    keys = ["a", "a" + last, "a" + last + "b", "a" + last * 3, "b", "\ud7ff", "\ud7ffx", "\ue000", last, last * 2]
    await sandbox.manager.commit({sandbox.key(key): key.encode() for key in keys})
    for prefix in ("", "a", "a" + last, "a" + last * 2, "\ud7ff", last, last * 2):
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert list(await sandbox.all_rows(prefix)) == expected, ascii(prefix)


async def test_a_page_has_as_many_keys_as_there_are_up_to_its_limit(sandbox: Sandbox) -> None:
    keys = sorted(sandbox.key(key) for key in ["b", "b/", *(f"a/{number}" for number in range(25)), "a/é", "a/😀", "a"])
    await sandbox.manager.commit({key: key.encode() for key in keys})
    below = sandbox.key("a/")
    wanted = [key for key in keys if key.startswith(below)]
    for limit in (1, 2, 7, 26, 27, 28):
        found: list[str] = []
        while page := await sandbox.manager.scan(below, after=found[-1] if found else "", limit=limit):
            assert len(page) == min(limit, len(wanted) - len(found))
            found += page
        assert found == wanted
    for after, prefix, expected in (
        ("a/7", "a/", ["a/8", "a/9"]),
        ("a/55", "a/", ["a/6", "a/7"]),  # it need not be there
        ("a/7", "b", ["b", "b/"]),
        ("b", "a/", []),
    ):
        page = await sandbox.manager.scan(sandbox.key(prefix), after=sandbox.key(after), limit=2)
        assert list(page) == [sandbox.key(key) for key in expected]


async def test_rows_that_come_and_go_while_pages_are_read(sandbox: Sandbox) -> None:
    there = {sandbox.key(f"a/{number:04}") for number in range(1500)}
    await sandbox.manager.commit(dict.fromkeys(there, b""))
    writes = {"a/0000": None, "a/0500+": b"", "a/1200": None, "a/1200+": b""}
    pages = []
    async for page in scan_pages(sandbox.manager, sandbox.key("a/")):
        pages.append(page)
        await sandbox.manager.commit({sandbox.key(key): value for key, value in writes.items()})
    found = [key for page in pages for key in page]
    assert found == sorted(there - {sandbox.key("a/1200")} | {sandbox.key("a/1200+")})


async def test_thousands_of_rows(sandbox: Sandbox) -> None:
    for part in range(5):
        await sandbox.manager.commit({sandbox.key(f"{number:05}"): b"x" for number in range(part, 10_000, 5)})
    assert list(await sandbox.all_rows()) == [f"{number:05}" for number in range(10_000)]
    page = await sandbox.manager.scan(sandbox.rows, after=sandbox.key("07000"), limit=2)
    assert list(page) == [sandbox.key("07001"), sandbox.key("07002")]
