"""What a replay is to do, from its arguments; and what it keeps in offsets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.spark import ArchiveError, ReplayError, replay
from kclient.spark.pipelines.archive_view import ArchivedPartition, ArchiveView
from kclient.spark.pipelines.rate_limiter import Rate
from kclient.spark.pipelines.replay_planning import ReplaySelection, checked_selection, planned, replayed, shares_of
from kclient.spark.pipelines.replay_records import Claim, Position, ReplayNames, check_target
from kclient.spark.pipelines.replay_tasks import Replayed
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.spark.made_archives import Row, make_archive


def selection(**given: Any) -> ReplaySelection:
    nothing: dict[str, Any] = {
        "topics": (), "topic_ids": (), "rename": None, "prefix": "", "target": None, "since": None, "until": None,
        "offsets": None, "keep_partitions": True, "records_per_second": None, "bytes_per_second": None,
    }  # fmt: skip
    return checked_selection(**{**nothing, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "x", "prefix": "p-"}, "one target for all goes with neither"),
        ({"topics": ["a"], "rename": {"b": "c"}}, "rename names topics that are not replayed: b"),
        ({"since": datetime(2013, 1, 1)}, "since is a datetime with a time zone"),  # noqa: DTZ001
        ({"since": 5, "until": 5}, "since is not before until"),
        ({"since": "yesterday"}, "since is a datetime or milliseconds"),
        ({"records_per_second": 0}, "records_per_second is a number greater than 0, not 0"),
        ({"bytes_per_second": float("inf")}, "bytes_per_second is a number"),
        ({"offsets": {("a", 0): (5, 5)}}, "offsets of a-0 are a first one and a greater one"),
        ({"offsets": [1]}, "offsets are a mapping"),
        ({"rename": 3}, "rename is a mapping"),
    ],
)
def test_arguments_that_are_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        selection(**given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transactional.id": "x"}, "transactional.id has no place here"),
        ({"acks": "1"}, "acks"),
        ({"lingr.ms": "1"}, "linger.ms"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replay(None, tmp_path, {"bootstrap.servers": "127.0.0.1:1", **settings}, dry_run=True)


def test_a_session_is_needed_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replay needs a Spark session"):
        replay(None, tmp_path, {"bootstrap.servers": "127.0.0.1:1"})


def test_targets() -> None:
    wanted = selection(rename={"a": "x"}, prefix="dr-")
    assert [wanted.target_of(topic) for topic in ("a", "b")] == ["x", "dr-b"]
    assert selection(target="all").target_of("a") == "all"


def test_the_id_follows_from_what_is_replayed() -> None:
    def id_of(folder: str = "/a", **given: Any) -> str:
        return selection(**given).default_id(Path(folder))

    assert id_of() == id_of(records_per_second=5)
    others = [id_of("/b"), id_of(prefix="p"), id_of(since=1), id_of(offsets={("t", 0): (1, 2)})]
    assert len({id_of(), *others, id_of(keep_partitions=False)}) == 6


def test_times() -> None:
    wanted = selection(since=datetime(1970, 1, 2, tzinfo=UTC), until=1 << 62)
    assert wanted.times == (86_400_000_000, (1 << 63) - 1)


def test_ranges_of_offsets(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(number % 2, number // 2, b"x") for number in range(20)])
    view = ArchiveView(tmp_path)

    def ranges(**given: Any) -> list[tuple[int, int, int]]:
        wanted = selection(**given)
        every = [replayed(each, wanted, 1) for each in planned(view, wanted)["t"]]
        return [(each.source.partition, each.start, each.end) for each in every if each is not None]

    assert ranges() == [(0, 0, 10), (1, 0, 10)]
    assert ranges(offsets={("t", 1): (3, 99)}) == [(1, 3, 10)]
    assert ranges(offsets={("t", 0): (50, 60)}) == [(0, 50, 50)]  # and not 10: what comes before 50 is not meant
    with pytest.raises(ArchiveError, match="holds no partition t-5"):
        ranges(offsets={("t", 5): (3, 9)})
    with pytest.raises(ConfigError, match="offsets are given for topics that are not replayed: u"):
        ranges(offsets={("u", 0): (3, 9)})


def test_what_the_archive_does_not_hold_is_refused(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(0, 0, b"x")])
    view = ArchiveView(tmp_path)
    with pytest.raises(ConfigError, match=r"rename names topics that the archive .* does not hold: tt; it has t"):
        planned(view, selection(rename={"tt": "x"}))  # t would go to t
    with pytest.raises(ArchiveError, match=r"no such topic with the id other; it has the-id \(t\)"):
        planned(view, selection(topic_ids=["other"]))
    assert planned(view, selection(topic_ids=["the-id"])).keys() == {"t"}


def test_a_topic_named_twice_is_replayed_once(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(0, 0, b"x")])
    twice = selection(topics=["t", "t"])
    assert len(planned(ArchiveView(tmp_path), twice)["t"]) == 1
    assert twice.default_id(tmp_path) == selection(topics=["t"]).default_id(tmp_path)


def todo(sizes: list[int]) -> list[Replayed]:
    return [Replayed(ArchivedPartition("t", "", n, 0, size, ()), "t", 0, size, 1) for n, size in enumerate(sizes)]


def test_a_task_for_each_partition_unless_there_is_a_rate() -> None:
    every = todo([5, 9, 1])
    assert shares_of(every, 2, Rate()) == [((each,), 1.0) for each in every]
    shares = shares_of(every, 2, Rate(records=10))
    assert [[each.source.partition for each in own] for own, _ in shares] == [[1], [0, 2]]
    assert sum(part for _, part in shares) == pytest.approx(1)
    assert shares[0][1] > shares[1][1]


def test_names_do_not_collide() -> None:
    names = ReplayNames("r", "t-1")
    assert names.transactional_id(0) == "r:t-1:0"
    assert names.position(5, "x", 4) == ("r:t-1:1", TopicPartition("x", 1))
    assert names.claims == "r:t-1"


def test_offsets_are_read_as_they_were_written() -> None:
    claim = Claim("id", "abc", "run", 3, 2, 7, "target's id")
    assert Claim.read("g", claim.offset()) == claim
    position = Position(41, 5, 7, "target's id")
    assert Position.read("g", position.committed()) == position
    for text in ("", "5", '{"format":1}', '{"format":"1"}'):
        with pytest.raises(ReplayError, match="that no replay has committed"):
            Claim.read("g", OffsetAndMetadata(1, text))
        with pytest.raises(ReplayError, match="that no replay has committed"):
            Position.read("g", OffsetAndMetadata(1, text))
    with pytest.raises(ReplayError, match="newer kclient"):
        Position.read("g", OffsetAndMetadata(1, '{"format":2}'))


def test_what_was_told_of_a_former_target_is_refused() -> None:
    names = ReplayNames("r", "t")
    for told in (Claim("id", "abc", "run", 3, 2, 7, "former"), Position(41, 5, 7, "former")):
        check_target(names, "x", told, "former")
        with pytest.raises(ReplayError, match="the target x was deleted and created again since the replay r has"):
            check_target(names, "x", told, "new")
    check_target(names, "x", Claim("id", "abc", "run", 3, 2, 7), "new")  # an older kclient told no id


def test_a_replay_goes_on_with_what_it_has_begun_only() -> None:
    claim, names = Claim("id", "abc", "run", 3, 2, 7), ReplayNames("r", "t")
    claim.check(names, "id", "abc")
    with pytest.raises(ReplayError, match="another topic called t"):
        claim.check(names, "other", "abc")
    with pytest.raises(ReplayError, match="other times, offsets or another choice of partitions"):
        claim.check(names, "id", "abd")
