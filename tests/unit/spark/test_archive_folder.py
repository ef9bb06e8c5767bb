"""The archive's folder: what is committed stays, what is not leaves no trace, and moves may be replayed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.spark.pipelines import folder as folders
from kclient.spark.pipelines.folder import MARKER, ArchiveFolder, StagedRun
from kclient.spark.pipelines.manifest import ArchivedFile, ArchivedRange, ArchiveError, Manifest


def manifest(number: int, staged: StagedRun, *names: str) -> Manifest:
    covered = (ArchivedRange("t", "id", 0, 0, 10 * number),)
    return Manifest(number, staged.run, covered, tuple(ArchivedFile(name, 1, 4, "id") for name in names), covered)


def write(staged: StagedRun, *names: str) -> None:
    for name in names:
        path = staged.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"data of {name}")


def commit(folder: ArchiveFolder, number: int, *names: str) -> Manifest:
    """A run that is committed, and has not moved its files."""
    with folder.run(number) as staged:
        write(staged, *names)
        made = manifest(number, staged, *names)
        folder.commit(made)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ArchiveFolder]:
    made = ArchiveFolder(tmp_path)
    with made.lock():
        yield made


def staged_folders(folder: ArchiveFolder) -> list[Path]:
    return list((folder.destination / "_kclient/staging").iterdir())


def test_a_committed_run_is_published(folder: ArchiveFolder) -> None:
    assert folder.last() is None
    made = commit(folder, 1, "topic=t/date=d/part-1.parquet")
    folder.publish(made)
    assert (folder.destination / "topic=t/date=d/part-1.parquet").read_text().startswith("data")
    assert folder.last() == made
    assert staged_folders(folder) == []


def test_moves_are_replayed_from_wherever_they_stopped(folder: ArchiveFolder) -> None:
    names = ("topic=t/date=a/1.parquet", "topic=t/date=b/2.parquet")
    made = commit(folder, 1, *names)
    (folder.destination / names[0]).parent.mkdir(parents=True)
    (staged_folders(folder)[0] / names[0]).rename(folder.destination / names[0])
    for _ in range(2):
        folder.publish(made)
    assert all((folder.destination / name).exists() for name in names)


def test_a_staging_folder_that_is_gone_before_its_files_were_moved_is_no_success(folder: ArchiveFolder) -> None:
    names = ("topic=t/date=a/1.parquet", "topic=t/date=b/2.parquet")
    made = commit(folder, 1, *names)
    staging = staged_folders(folder)[0]
    (folder.destination / names[0]).parent.mkdir(parents=True)
    (staging / names[0]).rename(folder.destination / names[0])
    shutil.rmtree(staging)
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r"2\.parquet is neither in .*: somebody deleted it"):
            folder.publish(made)


def test_what_was_published_may_be_deleted(folder: ArchiveFolder) -> None:
    made = commit(folder, 1, "topic=t/date=a/1.parquet")
    folder.publish(made)
    shutil.rmtree(folder.destination / "topic=t")
    folder.publish(made)
    later = commit(folder, 2, "topic=t/date=a/2.parquet")
    shutil.rmtree(staged_folders(folder)[0])
    with pytest.raises(ArchiveError, match=r"2\.parquet is neither in"):
        folder.publish(later)


def test_without_a_mark_files_that_are_there_are_published(folder: ArchiveFolder) -> None:
    """Older releases wrote none."""
    made = commit(folder, 1, "topic=t/date=a/1.parquet")
    folder.publish(made)
    (folder.destination / "_kclient/published").unlink()
    folder.publish(made)
    assert (folder.destination / "_kclient/published").exists()


def named(folder: ArchiveFolder, number: int, *dates: str) -> Manifest:
    """A run that is committed, and has not moved its files, which are called as tasks call them."""
    with folder.run(number) as staged:
        names = [f"topic=t/date={date}/part-00000-{number}-0-{staged.name}.parquet" for date in dates]
        write(staged, *names)
        made = manifest(number, staged, *names)
        folder.commit(made)
    return made


def published(folder: ArchiveFolder, count: int) -> Path:
    """So many runs; returns where the manifests are."""
    for number in range(1, count + 1):
        folder.publish(named(folder, number, "a"))
    return folder.destination / "_kclient/manifests"


def test_the_newest_manifest_is_missed(folder: ArchiveFolder) -> None:
    manifests = published(folder, 2)
    kept = (manifests / "00000002.json").read_bytes()
    (manifests / "00000002.json").unlink()
    with pytest.raises(ArchiveError, match=r"00000002\.json .* is gone from .* archive the same .* restore") as raised:
        folder.last()
    mark = folder.destination / "_kclient/published"
    assert f"delete the files part-*-00000002-{json.loads(kept)['run']}.parquet and {mark} to" in str(raised.value)
    (manifests / "00000002.json").write_bytes(kept)
    assert folder.last() is not None


def remedied(folder: ArchiveFolder, error: ArchiveError) -> None:
    """Delete what the error says, and nothing else."""
    said = str(error).partition(" or delete ")[2].partition(" to have these")[0]
    for pattern in re.findall(r"part-[^, ]+\.parquet", said):
        for path in list(folder.destination.glob(f"topic=*/date=*/{pattern}")):
            path.unlink()
    for mark in re.findall(r"and (/.*)", said):
        Path(mark).unlink()


@pytest.mark.parametrize("mark", ["of a backup", "gone", "newest"])
@pytest.mark.parametrize("lost", [1, 2])
def test_what_manifests_of_a_backup_do_not_know_is_not_archived_again(
    folder: ArchiveFolder, tmp_path_factory: pytest.TempPathFactory, mark: str, lost: int
) -> None:
    published(folder, 2)
    home, backup = folder.destination / "_kclient", tmp_path_factory.mktemp("backup") / "_kclient"
    shutil.copytree(home, backup)
    later = [named(folder, 3 + count, "a", "b") for count in range(lost)]
    for each in later:
        folder.publish(each)
    for each in later:
        (home / f"manifests/{each.number:08d}.json").unlink()
    if mark == "of a backup":
        shutil.copy(backup / "published", home / "published")
    elif mark == "gone":
        (home / "published").unlink()
    with pytest.raises(ArchiveError, match=r"gone from .* files that were archived then are there") as raised:
        folder.last()
    assert all(f"{each.number:08d}.json (run {each.run})" in str(raised.value) for each in later)
    remedied(folder, raised.value)
    last = folder.last()
    assert last is not None
    assert last.number == 2
    assert len(list(folder.destination.glob("topic=*/date=*/*.parquet"))) == 2


def test_a_lost_manifest_of_a_run_whose_files_were_on_their_way(folder: ArchiveFolder) -> None:
    manifests = published(folder, 1)
    made = named(folder, 2, "a", "b")
    (staged_folders(folder)[0] / made.files[0].path).rename(folder.destination / made.files[0].path)
    assert folder.last() == made  # a run that was interrupted is gone on with
    (manifests / "00000002.json").unlink()
    with pytest.raises(ArchiveError, match=rf"00000002\.json \(run {made.run}\) is gone from") as raised:
        folder.last()
    assert len(staged_folders(folder)) == 1  # it may be restored yet
    remedied(folder, raised.value)
    last = folder.last()
    assert last is not None
    assert last.number == 1


def test_another_run_in_the_place_of_a_lost_one_does_not_hide_it(
    folder: ArchiveFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    manifests = published(folder, 1)
    before = tmp_path_factory.mktemp("copy") / "copy"
    shutil.copytree(folder.destination, before)
    folder.publish(named(folder, 2, "a"))
    copy = ArchiveFolder(before)
    with copy.lock():
        other = named(copy, 2, "b")
    shutil.copy(before / "_kclient/manifests/00000002.json", manifests / "00000002.json")
    with pytest.raises(ArchiveError, match=r"00000002\.json \(run ") as raised:
        folder.last()
    assert other.run not in str(raised.value)


def test_a_run_that_was_never_committed_is_not_missed(folder: ArchiveFolder) -> None:
    published(folder, 1)
    with pytest.raises(KeyboardInterrupt), folder.run(2) as staged:
        write(staged, f"topic=t/date=a/part-00000-2-0-{staged.name}.parquet")
        (folder.destination / "_kclient/staging/00000003-0123456789abcdef/topic=t/date=a").mkdir(parents=True)
        raise KeyboardInterrupt
    last = folder.last()
    assert last is not None
    assert last.number == 1


def test_many_lost_runs_are_told_in_one_sentence(folder: ArchiveFolder) -> None:
    for path in published(folder, 20).iterdir():
        if path.name != "00000001.json":
            path.unlink()
    with pytest.raises(
        ArchiveError, match=r"and 16 more of later runs are gone .* 16 more of later runs and .*archived anew$"
    ) as raised:
        folder.last()
    assert len(str(raised.value)) < 1_500


def test_the_mark_tells_of_a_lost_run_whose_files_were_deleted(folder: ArchiveFolder) -> None:
    manifests = published(folder, 2)
    (manifests / "00000002.json").unlink()
    next(folder.destination.glob("topic=*/date=*/part-00000-2-*")).unlink()
    with pytest.raises(ArchiveError, match=r"/published tells of what it archived: "):
        folder.last()


def test_an_older_manifest_is_not_missed(folder: ArchiveFolder) -> None:
    """Each holds all positions."""
    (published(folder, 2) / "00000001.json").unlink()
    last = folder.last()
    assert last is not None
    assert last.number == 2


def test_a_run_whose_files_are_not_moved_yet_is_not_missed(folder: ArchiveFolder) -> None:
    published(folder, 1)
    made = commit(folder, 2, "topic=t/date=a/part-9.parquet")
    assert folder.last() == made


def test_a_run_that_is_committed_while_others_look_is_not_missed(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run, and who reads an archive, take no lock."""
    folder.publish(commit(folder, 1, "topic=t/date=a/part-0-00000001-0123456789abcdef.parquet"))
    look = folders._runs_of_files
    later: list[Manifest] = []

    def slow(destination: Path) -> set[str]:
        if not later:
            with folder.run(2) as staged:
                name = f"topic=t/date=a/part-0-{staged.folder.name}.parquet"
                write(staged, name)
                later.append(manifest(2, staged, name))
                folder.commit(later[0])
            folder.publish(later[0])
        return look(destination)

    monkeypatch.setattr(folders, "_runs_of_files", slow)
    assert ArchiveFolder(folder.destination).last() == later[0]


def test_files_of_an_earlier_naming_are_missed_by_no_manifest_at_all(folder: ArchiveFolder) -> None:
    """They bore no number."""
    name = "topic=t/date=a/part-00000-1-0-0123456789abcdef.parquet"
    made = commit(folder, 1, name)
    folder.publish(made)
    assert folder.last() == made
    shutil.rmtree(folder.destination / "_kclient/manifests")
    (folder.destination / "_kclient/published").unlink()
    (folder.destination / "_kclient/manifests").mkdir()
    with pytest.raises(ArchiveError, match=r"the manifests are gone .* delete its Parquet files to have"):
        folder.last()


def test_data_of_others_is_none_of_a_lost_run(folder: ArchiveFolder) -> None:
    path = folder.destination / "topic=t/date=a/part-00000-d3b07384-d9a0-4e9b-8f3e-7c5d6e5b9a10-c000.snappy.parquet"
    path.parent.mkdir(parents=True)
    path.touch()
    assert folder.last() is None


@pytest.mark.parametrize("gone", ["_kclient/manifests", "_kclient/manifests/*", "_kclient"])
def test_data_without_any_manifest_is_not_archived_again(folder: ArchiveFolder, gone: str) -> None:
    published(folder, 1)
    for path in list(folder.destination.glob(gone)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder.destination / "_kclient/manifests").mkdir(parents=True, exist_ok=True)
    with pytest.raises(ArchiveError, match=r"gone from .* would archive the same records again; restore"):
        folder.last()
    shutil.rmtree(folder.destination / "topic=t")
    (folder.destination / "_kclient/published").unlink(missing_ok=True)
    assert folder.last() is None


def test_a_death_between_the_mark_and_the_cleaning_is_gone_on_from(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = commit(folder, 1, "topic=t/date=a/1.parquet")
    with monkeypatch.context() as patched:
        patched.setattr(folders, "_remove", lambda staging: None)
        folder.publish(made)
    assert staged_folders(folder) != []
    folder.publish(made)
    assert staged_folders(folder) == []


def test_a_run_that_fails_leaves_nothing(folder: ArchiveFolder) -> None:
    with pytest.raises(KeyboardInterrupt), folder.run(1) as staged:
        write(staged, "topic=t/date=a/1.parquet")
        raise KeyboardInterrupt
    assert staged_folders(folder) == []
    assert folder.last() is None


def test_a_run_that_fails_after_its_commit_keeps_what_it_has_to_move(folder: ArchiveFolder) -> None:
    with pytest.raises(KeyboardInterrupt), folder.run(1) as staged:
        write(staged, "topic=t/date=a/1.parquet")
        made = manifest(1, staged, "topic=t/date=a/1.parquet")
        folder.commit(made)
        raise KeyboardInterrupt
    folder.publish(made)
    assert (folder.destination / "topic=t/date=a/1.parquet").exists()


def dead_run(folder: ArchiveFolder, name: str) -> Path:
    path = folder.destination / "_kclient/staging" / name
    path.mkdir()
    (path / MARKER).write_text('{"run": "x"}')
    return path


def test_dead_runs_are_forgotten_and_live_ones_are_not(folder: ArchiveFolder) -> None:
    dead, older = dead_run(folder, "00000002-abc"), dead_run(folder, "00000003")
    half = folder.destination / "_kclient/manifests/00000002.abc.tmp"
    half.write_text("{")
    with folder.run(2) as alive:
        temporary = folder.destination / f"_kclient/manifests/00000002.{alive.run}.tmp"
        temporary.write_text("{")
        folder.discard_dead()
        assert staged_folders(folder) == [alive.folder]
        assert temporary.exists()
    assert not any(path.exists() for path in (dead, older, half))


def test_what_is_no_runs_is_left_alone(folder: ArchiveFolder) -> None:
    strangers = [folder.destination / "_kclient" / name for name in ("staging/.DS_Store", "manifests/.DS_Store")]
    strangers.append(folder.destination / "_kclient/manifests/00000009 copy.json")
    strangers += [folder.destination / "_kclient/manifests" / name for name in ("notes.tmp", "00000002.mine.tmp")]
    for path in strangers:
        path.write_text("x")
    for name in ("staging/lost+found", "manifests/a folder.tmp", "manifests/00000002.tmp"):
        (folder.destination / "_kclient" / name).mkdir()
    made = commit(folder, 1)
    folder.publish(made)
    folder.discard_dead()
    assert folder.last() == made
    assert all(path.exists() for path in strangers)


def test_a_second_run_at_the_same_time_is_told_who_is_at_work(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock(), pytest.raises(ArchiveError, match=r"another run archives .* \(process \d+\)"), folder.lock():
        pass
    with folder.lock():
        pass


def test_two_runs_that_got_past_the_lock_do_not_both_commit(folder: ArchiveFolder) -> None:
    (folder.destination / "_kclient/lock").unlink()  # somebody "mended" it
    other = ArchiveFolder(folder.destination)
    with other.lock(), folder.run(1) as mine, other.run(1) as theirs:
        write(mine, "topic=t/date=a/mine.parquet")
        write(theirs, "topic=t/date=a/theirs.parquet")
        first = manifest(1, theirs, "topic=t/date=a/theirs.parquet")
        other.commit(first)
        with pytest.raises(ArchiveError, match=r"another run was committed meanwhile as 00000001\.json"):
            folder.commit(manifest(1, mine, "topic=t/date=a/mine.parquet"))
    assert folder.last() == first


def test_without_hard_links_it_commits_too(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    made = commit(folder, 1)
    assert folder.last() == made
    with pytest.raises(ArchiveError, match="another run was committed meanwhile"):
        commit(folder, 1)


def test_a_worker_that_does_not_see_the_staging_folder_says_so(folder: ArchiveFolder, tmp_path: Path) -> None:
    with folder.run(1) as staged:
        staged.check()
        for other in (StagedRun(tmp_path / "elsewhere", staged.run), StagedRun(staged.folder, "0123")):
            with pytest.raises(ArchiveError, match="driver and workers must share the archive's folder"):
                other.check()


def test_a_file_that_somebody_deleted_is_named(folder: ArchiveFolder) -> None:
    made = commit(folder, 1, "topic=t/date=a/1.parquet")
    (staged_folders(folder)[0] / "topic=t/date=a/1.parquet").unlink()
    with pytest.raises(ArchiveError, match=r"1\.parquet is neither in"):
        folder.publish(made)


@pytest.mark.parametrize("call", ["sync", "_write", "link"])
def test_a_full_disk_commits_nothing(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    with monkeypatch.context() as patched:
        if call == "link":
            patched.setattr(os, "link", full)
        else:
            patched.setattr(folders, call, full)
        with pytest.raises(ArchiveError, match=r"nothing was archived: No space left on device \(somewhere\)"):
            commit(folder, 1, "topic=t/date=a/1.parquet")
    assert folder.last() is None
    assert staged_folders(folder) == []
    assert commit(folder, 1, "topic=t/date=a/1.parquet") == folder.last()


def test_a_disk_that_is_full_while_files_move_is_gone_on_with(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("topic=t/date=a/1.parquet", "topic=t/date=b/2.parquet")
    made = commit(folder, 1, *names)
    with monkeypatch.context() as patched:
        original = Path.mkdir

        def mkdir(path: Path, *arguments: object, **named: object) -> None:
            if path.name == "date=b":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            original(path, *arguments, **named)  # type: ignore[arg-type]

        patched.setattr(Path, "mkdir", mkdir)
        with pytest.raises(ArchiveError, match="the run is committed, but its files could not be moved"):
            folder.publish(made)
    folder.publish(made)
    assert all((folder.destination / name).exists() for name in names)


@pytest.mark.parametrize("below", ["a file", "a file/archive"])
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, below: str) -> None:
    (tmp_path / "a file").write_text("x")
    with (
        pytest.raises(ArchiveError, match=r"the archive's folder .* cannot be used: "),
        ArchiveFolder(tmp_path / below).lock(),
    ):
        pass


EMPTY = {"format": 2, "number": 1, "run": "r", "ranges": [], "files": [], "positions": []}
PLACE = {"topic": "t", "topic_id": "id", "partition": 0, "start": 0, "end": 10}
WRONG_FIELDS: list[dict[str, object]] = [
    {"number": "1"}, {"number": None}, {"run": 5}, {"files": None}, {"files": {"a": 1}}, {"ranges": [[]]},
    {"files": [{"path": 7, "rows": 1, "size": 1}]}, {"files": [{"path": "p", "rows": "1", "size": 1}]},
    {"positions": [{**PLACE, "end": "10"}]}, {"positions": [{**PLACE, "topic": ["t"]}]},
    {"positions": [{**PLACE, "more": 1}]}, {"lost": None}, {"incomplete": "id"}, {"incomplete": [7]},
]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe{", b"\x80", b"[" * 100_000, b"\0" * 500, b'{"format": 1}',
        b'{"format": 2, "number": 1}', b'{"format": "2"}', b'{"format": []}',
        *(json.dumps({**EMPTY, **wrong}).encode() for wrong in WRONG_FIELDS),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_named(folder: ArchiveFolder, content: bytes) -> None:
    (folder.destination / "_kclient/manifests/00000001.json").write_bytes(content)
    with pytest.raises(ArchiveError, match=r"00000001\.json is not a manifest"):
        folder.last()


def test_a_manifest_that_cannot_be_read_is_named(folder: ArchiveFolder) -> None:
    (folder.destination / "_kclient/manifests/00000001.json").mkdir()
    with pytest.raises(ArchiveError, match=r"manifests/00000001\.json cannot be read: Is a directory"):
        folder.last()


def test_the_manifest_of_a_newer_release_is_refused(folder: ArchiveFolder) -> None:
    made = commit(folder, 1)
    data = {**json.loads(made.to_json()), "format": 4}
    (folder.destination / "_kclient/manifests/00000001.json").write_text(json.dumps(data))
    with pytest.raises(ArchiveError, match="install a newer kclient"):
        folder.last()


def test_a_manifest_of_the_first_format_is_gone_on_from(folder: ArchiveFolder) -> None:
    """It knew no run's name, and its staging folder had the number alone."""
    place = {"topic": "t", "topic_id": "id", "partition": 0, "start": 0, "end": 10}
    file = {"path": "topic=t/date=a/1.parquet", "rows": 1, "size": 4}
    data = {"format": 1, "number": 4, "ranges": [place], "positions": [place], "files": [file]}
    (folder.destination / "_kclient/manifests/00000004.json").write_text(json.dumps(data))
    staging = folder.destination / "_kclient/staging/00000004"
    (staging / "topic=t/date=a").mkdir(parents=True)
    (staging / "topic=t/date=a/1.parquet").write_text("data")
    last = folder.last()
    assert last is not None
    assert last.positions[0].end == 10
    assert last.incomplete == ("id",)
    folder.publish(last)
    assert (folder.destination / "topic=t/date=a/1.parquet").exists()
    assert staged_folders(folder) == []


def positions(**ends: tuple[int, int]) -> list[dict[str, object]]:
    """Where the first partition of each topic stands, by the topic's id."""
    return [{**PLACE, "topic": name, "topic_id": name, "start": at, "end": end} for name, (at, end) in ends.items()]


def put(folder: ArchiveFolder, number: int, **content: object) -> None:
    path = folder.destination / f"_kclient/manifests/{number:08d}.json"
    path.write_text(json.dumps({**EMPTY, "number": number, **content}))


def incomplete(folder: ArchiveFolder) -> tuple[str, ...] | None:
    last = folder.last()
    assert last is not None
    return last.incomplete


def test_topics_that_only_the_first_format_saw_stay_incomplete(folder: ArchiveFolder) -> None:
    """Runs of format 2 took their positions over, and were to tell later which topics they had looked at."""
    put(folder, 1, format=1, positions=positions(a=(0, 10), b=(0, 10), c=(0, 10)))
    assert incomplete(folder) == ("a", "b", "c")
    put(folder, 2, positions=positions(a=(0, 10), b=(10, 15), c=(0, 10), d=(0, 5)))
    assert incomplete(folder) == ("a", "c")
    (folder.destination / "_kclient/manifests/00000002.json").write_text("damaged")
    put(folder, 3, positions=positions(a=(0, 10), b=(15, 15), c=(10, 10), d=(5, 7)))  # c had nothing new
    assert incomplete(folder) == ("a",)
    put(folder, 4, positions=positions(a=(0, 10), b=(15, 16), c=(10, 10), d=(5, 7)), incomplete=["a"])
    assert incomplete(folder) == ("a",)
    put(folder, 5, positions=positions(a=(0, 10), b=(16, 17), c=(10, 10), d=(5, 7)))  # by the older release again
    assert incomplete(folder) == ("a",)
    put(folder, 6, positions=positions(a=(10, 10), b=(16, 17), c=(10, 10), d=(5, 7)), incomplete=[])
    assert incomplete(folder) == ()


def test_without_a_manifest_of_the_first_format_no_topic_is_incomplete(folder: ArchiveFolder) -> None:
    put(folder, 3, positions=positions(a=(0, 10)))
    assert incomplete(folder) == ()
