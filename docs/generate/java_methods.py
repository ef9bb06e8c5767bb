"""The clients' methods beside those of the Java clients, in Markdown.

`python docs/generate/java_methods.py > docs/reference/java-methods.md` writes it. The tables hold what differs: a
method that is in none of them has Java's name in snake_case, in `kclient` and in `kclient.sync`.
`tests/conformance/test_methods_java.py` compares them with Java's interfaces.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Final

__all__ = ["LEFT_OUT", "MISSING", "RENAMED", "in_snake_case", "ours", "render"]

KAFKA: Final = "4.3.1"

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "Admin": {
        "alterConsumerGroupOffsets": "alter_group_offsets",
        "alterStreamsGroupOffsets": "alter_group_offsets",
        "deleteConsumerGroupOffsets": "delete_group_offsets",
        "deleteConsumerGroups": "delete_groups",
        "deleteShareGroups": "delete_groups",
        "deleteStreamsGroupOffsets": "delete_group_offsets",
        "deleteStreamsGroups": "delete_groups",
        "describeClassicGroups": "describe_groups",
        "describeConsumerGroups": "describe_groups",
        "describeDelegationToken": "describe_delegation_tokens",
        "describeShareGroups": "describe_groups",
        "describeStreamsGroups": "describe_groups",
        "incrementalAlterConfigs": "alter_configs",
        "listConsumerGroupOffsets": "list_group_offsets",
        "listConsumerGroups": "list_groups",
        "listStreamsGroupOffsets": "list_group_offsets",
    },
    "Consumer": {"commitSync": "commit"},
    "Producer": {},
    "ShareConsumer": {"commitSync": "commit"},
}
"""Methods with another name than Java's, by client."""

LEFT_OUT: Final[Mapping[str, Mapping[str, str]]] = {
    "Admin": {
        "listClientMetricsResources": "Deprecated since Kafka 4.1 for `listConfigResources`, which tells the same.",
    },
    "Consumer": {},
    "Producer": {},
    "ShareConsumer": {},
}
"""Methods that are not to come, and why."""

MISSING: Final[Mapping[str, Mapping[str, str]]] = {
    "Admin": {},
    "Consumer": {},
    "Producer": {},
    "ShareConsumer": {},
}
"""Methods that are still to come, and what they need."""

_START = f"""\
# Beside the Java clients

`kclient.Admin`, `Producer`, `Consumer` and `ShareConsumer`, and those of `kclient.sync`, have the methods of the
interfaces of the same names in Kafka {KAFKA}, in snake_case: `createTopics` is `create_topics`. What is different is
below; a test compares it with the published jar. Java's classes of options are arguments (`validate_only=True`), its
results with a future for each thing are one answer, and what failed is raised, where it is several things as a
`PartialFailureError`. `acknowledge` with a topic, a partition and an offset is `acknowledge_offset`.
"""

_SECTIONS = (
    ("Other names", "Groups of every type have one call each, `commit` waits as Java's `commitSync`.", RENAMED),
    ("Left out", "", LEFT_OUT),
    ("Still missing", "", MISSING),
)


def ours(client: str, java: str) -> str:
    """The name that one of Java's methods has here, or would have."""
    return RENAMED[client].get(java) or in_snake_case(java)


def in_snake_case(java: str) -> str:
    """`create_topics` for `createTopics`."""
    return re.sub("(?=[A-Z])", "_", java).lower()


def render() -> str:
    """The whole page."""
    return "\n".join([_START, *(_section(*section) for section in _SECTIONS if any(section[2].values()))])


def _section(title: str, text: str, table: Mapping[str, Mapping[str, str]]) -> str:
    code = table is RENAMED
    rows = [
        f"| {client} | `{java}` | {f'`{told}`' if code else told} |"
        for client, methods in table.items()
        for java, told in sorted(methods.items())
    ]
    head = f"| client | Java | {'here' if code else 'why' if table is LEFT_OUT else 'what it needs'} |\n|---|---|---|"
    return "\n".join([f"## {title}\n", *([f"{text}\n"] if text else []), head, *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
