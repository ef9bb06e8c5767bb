"""What pipelines read, as commands name it: a topic, one at an address, or of an archive; where reports are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kclient.cli.errors import UsageError
from kclient.cli.settings import check_topic_name, client_settings, parse_config, refuse_group_settings, with_patience

if TYPE_CHECKING:
    from kclient.spark.pipelines import ArchivedTopic, TopicAt
    from kclient.spark.pipelines.report_page import PageReport

_ARCHIVE = "archive:"


def is_archive(side: str) -> bool:
    """Whether a side is `TOPIC@archive:DIR`."""
    return side.partition("@")[2].startswith(_ARCHIVE)


def side_of(
    text: str, bootstrap: str, config: list[str], what: str = "an audit", *, topic_id: str | None = None
) -> TopicAt | ArchivedTopic:
    """The side that `TOPIC`, `TOPIC@ADDRESS` or `TOPIC@archive:DIR` means."""
    from kclient.spark.pipelines import ArchivedTopic, TopicAt

    topic, _, place = text.partition("@")
    check_topic_name(topic)
    if is_archive(text):
        return ArchivedTopic(place.removeprefix(_ARCHIVE), topic, topic_id)
    if "@" in text and not place:
        raise UsageError(f"a side is TOPIC, TOPIC@HOST:PORT or TOPIC@archive:DIR, not {text!r}")
    parse_config(config)
    settings = client_settings(place or bootstrap, config, refused=("key.deserializer", "value.deserializer"))
    refuse_group_settings({name.replace("_", ".") for name in settings}, f"{what} has none")
    return TopicAt(topic, settings)


def asking_side(side: TopicAt | ArchivedTopic) -> tuple[TopicAt | ArchivedTopic, object]:
    """The side with the patience of commands, and how long that is."""
    from kclient.spark.pipelines import ArchivedTopic, TopicAt

    if isinstance(side, ArchivedTopic):
        return side, ""
    asking, patience = with_patience(dict(side.settings))
    return TopicAt(side.topic, asking), patience


def write_pages(found: PageReport, html: str | None, png: str | None) -> None:
    """Write a report. Last of all: where the disk is full, what was found is told all the same."""
    if html is not None:
        found.write_html(html)
    if png is not None:
        found.write_png(png)


def check_pages(paths: Mapping[str, str | None], what: str) -> None:
    """Whether reports could be written: said before the work, which may take an hour, and not after it.

    Args:
        paths: where, by the option.
        what: begins the sentence where matplotlib is not installed.
    """
    from kclient.spark.pipelines.report_page import check_matplotlib, check_writable

    for option, path in paths.items():
        if path is not None:
            check_matplotlib(what)
            check_writable(path, option)
