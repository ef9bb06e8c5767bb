"""The archive's folder: what is committed stays, what is not leaves no trace, and moves may be replayed."""

import json
from pathlib import Path

import pytest

from kclient.spark.pipelines.manifest import ArchivedFile, ArchivedRange, ArchiveError, ArchiveFolder, Manifest


def manifest(number: int, *names: str) -> Manifest:
    covered = (ArchivedRange("t", "id", 0, 0, 10 * number),)
    return Manifest(number, covered, tuple(ArchivedFile(name, 1, 4) for name in names), covered)


def staged(folder: ArchiveFolder, number: int, *names: str) -> None:
    for name in names:
        path = folder.staging(number) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"data of {name}")


def test_a_committed_run_is_published(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock():
        assert folder.last() is None
        staged(folder, 1, "topic=t/date=d/part-1.parquet")
        folder.commit(manifest(1, "topic=t/date=d/part-1.parquet"))
        folder.publish(manifest(1, "topic=t/date=d/part-1.parquet"))
    assert (tmp_path / "topic=t/date=d/part-1.parquet").read_text().startswith("data")
    assert folder.last() == manifest(1, "topic=t/date=d/part-1.parquet")
    assert not folder.staging(1).exists()


def test_moves_are_replayed_from_wherever_they_stopped(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    names = ("topic=t/date=a/1.parquet", "topic=t/date=b/2.parquet")
    with folder.lock():
        staged(folder, 1, *names)
        folder.commit(manifest(1, *names))
        (tmp_path / names[0]).parent.mkdir(parents=True)
        (folder.staging(1) / names[0]).rename(tmp_path / names[0])
        for _ in range(2):
            folder.publish(manifest(1, *names))
    assert all((tmp_path / name).exists() for name in names)


def test_a_run_that_was_not_committed_is_forgotten(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock():
        staged(folder, 1, "topic=t/date=a/1.parquet")
        folder.commit(manifest(1, "topic=t/date=a/1.parquet"))
        staged(folder, 2, "topic=t/date=a/2.parquet")
        folder.discard_uncommitted(folder.last())
        assert folder.staging(1).exists()
        assert not folder.staging(2).exists()


def test_a_second_run_at_the_same_time_is_told_who_is_at_work(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock(), pytest.raises(ArchiveError, match=r"another run archives .* \(process \d+\)"), folder.lock():
        pass
    with folder.lock():
        pass


def test_a_file_that_somebody_deleted_is_named(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock():
        staged(folder, 1, "topic=t/date=a/1.parquet")
        folder.commit(manifest(1, "topic=t/date=a/1.parquet"))
        (folder.staging(1) / "topic=t/date=a/1.parquet").unlink()
        with pytest.raises(ArchiveError, match=r"1\.parquet is neither in"):
            folder.publish(manifest(1, "topic=t/date=a/1.parquet"))


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock():
        (tmp_path / "_kclient/manifests/00000001.json").write_text(text)
        with pytest.raises(ArchiveError, match=r"00000001\.json is no manifest"):
            folder.last()


def test_the_manifest_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    with folder.lock():
        data = {**json.loads(manifest(1).to_json()), "format": 2}
        (tmp_path / "_kclient/manifests/00000001.json").write_text(json.dumps(data))
        with pytest.raises(ArchiveError, match="install a newer kclient"):
            folder.last()
