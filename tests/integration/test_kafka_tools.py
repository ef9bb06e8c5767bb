"""Kafka's own command line tools against real Kafka and a gateway: the same calls, with the same answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kafka_artifacts import KAFKA_4
from tests.kafka_tools import EndedTool, KafkaTools, kafka_tools

pytestmark = [pytest.mark.foreign, pytest.mark.maven]

PACKAGE = "org.apache.kafka.tools"
TOPICS = f"{PACKAGE}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = f"{PACKAGE}.consumer.group.ConsumerGroupCommand"
ALL_GROUPS = f"{PACKAGE}.GroupsCommand"
OFFSETS = f"{PACKAGE}.GetOffsetShell"
PRODUCER = f"{PACKAGE}.ConsoleProducer"
CONSUMER = f"{PACKAGE}.consumer.ConsoleConsumer"
SHARE_CONSUMER = f"{PACKAGE}.consumer.ConsoleShareConsumer"
SHARE_GROUPS = f"{PACKAGE}.consumer.group.ShareGroupCommand"
ELECT = f"{PACKAGE}.LeaderElectionCommand"
REASSIGN = f"{PACKAGE}.reassign.ReassignPartitionsCommand"
TRANSACTIONS = f"{PACKAGE}.TransactionsCommand"
DELETE_RECORDS = f"{PACKAGE}.DeleteRecordsCommand"
LOG_DIRS = f"{PACKAGE}.LogDirsCommand"
CLUSTER = f"{PACKAGE}.ClusterTool"
CLIENT_METRICS = f"{PACKAGE}.ClientMetricsCommand"
QUORUM = f"{PACKAGE}.MetadataQuorumCommand"
VERSIONS = f"{PACKAGE}.BrokerApiVersionsCommand"
PERFORMANCE = f"{PACKAGE}.ProducerPerformance"
CONSUMER_PERFORMANCE = f"{PACKAGE}.ConsumerPerformance"
SHARE_PERFORMANCE = f"{PACKAGE}.ShareConsumerPerformance"
END_TO_END = f"{PACKAGE}.EndToEndLatency"
PARTITIONS = 3


@pytest.fixture(scope="module")
def jvm(kafka_jars_4: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    with kafka_tools(KAFKA_4, tmp_path_factory.mktemp("tools")) as tools:
        yield tools


class Shell:
    """Runs tools against one broker."""

    def __init__(self, tools: KafkaTools, bootstrap: str) -> None:
        self._tools = tools
        self.bootstrap = bootstrap

    def __call__(self, tool: str, *arguments: str, given: str = "", code: int = 0) -> EndedTool:
        address = ("--bootstrap-server", self.bootstrap)
        call = (*arguments, *address) if tool == CLUSTER else (*address, *arguments)
        return self._tools.run(tool, *call, given=given, code=code)


@pytest.fixture
def shell(jvm: KafkaTools, broker: str) -> Shell:
    return Shell(jvm, broker)


@pytest.fixture
def made(shell: Shell, topic: str) -> str:
    shell(TOPICS, "--create", "--topic", topic, "--partitions", str(PARTITIONS))
    return topic


def until(true: Callable[[], bool]) -> None:
    """Kafka's controller tells brokers of some changes a moment later."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def keyed(count: int) -> str:
    return "".join(f"key {number}:value {number}\n" for number in range(count))


def produce(shell: Shell, topic: str, text: str, *arguments: str) -> None:
    shell(PRODUCER, "--topic", topic, *arguments, "--reader-property", "parse.key=true",
          "--reader-property", "key.separator=:", given=text)  # fmt: skip


def offsets(shell: Shell, topic: str, *arguments: str) -> dict[int, int]:
    rows = [line.split(":") for line in shell(OFFSETS, "--topic", topic, *arguments).lines]
    assert all(name == topic for name, _, _ in rows)
    return {int(partition): int(offset) for _, partition, offset in rows}


def test_topics(shell: Shell, made: str) -> None:
    again = shell(TOPICS, "--create", "--topic", made, code=1)
    assert f"Topic '{made}' already exists." in again.out
    shell(TOPICS, "--create", "--topic", made, "--if-not-exists")
    assert "Topic name is invalid" in shell(TOPICS, "--create", "--topic", "bad/name", code=1).out
    wrong = ("--config nonsense=1", "--config retention.ms=x", "--partitions 0", "--replica-assignment 7")
    for option in wrong:
        refused = shell(TOPICS, "--create", "--topic", f"{made}-x", *option.split(), code=1)
        assert "Error while executing topic command" in refused.out
    told = shell(TOPICS, "--describe", "--topic", made, "--partition-size-limit-per-response", "1")
    assert [row[3:10] for row in told.rows[1:]] == [
        [str(number), "Leader:", "1", "Replicas:", "1", "Isr:", "1"] for number in range(PARTITIONS)
    ]
    for kind in ("under-replicated", "unavailable", "under-min-isr"):
        assert shell(TOPICS, "--describe", "--topic", made, f"--{kind}-partitions").lines == []
    assert len(shell(TOPICS, "--describe", "--topic", made, "--at-min-isr-partitions").lines) == PARTITIONS
    assert "would not be an increase" in shell(TOPICS, "--alter", "--topic", made, "--partitions", "2", code=1).out
    for action in ("--describe", "--delete", "--alter"):
        more = ("--partitions", "9") if action == "--alter" else ()
        missing = shell(TOPICS, action, "--topic", f"{made}-none", *more, code=1)
        assert f"Topic '{made}-none' does not exist as expected" in missing.out
        shell(TOPICS, action, "--topic", f"{made}-none", *more, "--if-exists")


def test_consoles(shell: Shell, made: str) -> None:
    produce(shell, made, keyed(20), "--compression-codec", "zstd", "--command-property", "acks=all")
    shell(
        PRODUCER, "--topic", made, "--sync", "--reader-property", "parse.headers=true", given="h:v,w:x\twith headers\n"
    )
    ends = offsets(shell, made)
    shown = [
        "--from-beginning", "--max-messages", "21", "--timeout-ms", "20000", "--topic", made,
        *(f"--formatter-property=print.{what}=true" for what in ("key", "headers", "partition", "offset", "timestamp")),
    ]  # fmt: skip
    read = [line.split("\t") for line in shell(CONSUMER, *shown, "--group", f"{made}-a").lines]
    assert {(row[1], row[2]) for row in read} == {
        (f"Partition:{number}", f"Offset:{offset}") for number, end in ends.items() for offset in range(end)
    }
    assert {tuple(row[3:]) for row in read} == {
        *(("NO_HEADERS", f"key {number}", f"value {number}") for number in range(20)),
        ("h:v,w:x", "null", "with headers"),
    }
    assert all(row[0].startswith("CreateTime:") for row in read)

    def values(*arguments: str) -> list[str]:
        return sorted(shell(CONSUMER, "--timeout-ms", "20000", *arguments).lines)

    everything = sorted([f"value {number}" for number in range(20)] + ["with headers"])
    new = ("--from-beginning", "--max-messages", "21", "--command-property", "group.protocol=consumer")
    assert values("--topic", made, "--group", f"{made}-b", *new) == everything
    committed = ("--isolation-level", "read_committed")
    assert values("--include", f"{made}|none", "--group", f"{made}-c", *new, *committed) == everything
    largest = max(ends, key=lambda number: ends[number])
    count = ends[largest] - 1
    assert (
        len(values("--topic", made, "--partition", str(largest), "--offset", "1", "--max-messages", str(count)))
        == count
    )

    group = f"{made}-share"
    shell(CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", group,
          "--add-config", "share.auto.offset.reset=earliest")  # fmt: skip
    shared = shell(SHARE_CONSUMER, "--topic", made, "--group", group, "--max-messages", "21", "--timeout-ms", "20000",
                   "--formatter-property", "print.delivery=true")  # fmt: skip
    assert sorted(line.split("\t") for line in shared.lines) == [["Delivery:1", value] for value in everything]
    assert group in shell(SHARE_GROUPS, "--list").lines
    listed = {row[0]: row[1:] for row in shell(ALL_GROUPS, "--list").rows}
    assert listed[f"{made}-a"] == ["Classic", "consumer"]
    assert listed[f"{made}-b"] == ["Consumer", "consumer"]
    assert listed[group] == ["Share", "share"]


def test_offsets_and_deleted_records(shell: Shell, made: str, tmp_path: Path) -> None:
    produce(shell, made, keyed(30))
    ends = offsets(shell, made)
    assert sum(ends.values()) == 30
    starts = dict.fromkeys(ends, 0)
    filled = {number: 0 for number, end in ends.items() if end}
    for moment, wanted in {
        "-1": ends, "latest": ends, "-2": starts, "earliest-local": starts, "0": filled, "latest-tiered": {},
        "earliest-pending-upload": {}, "99999999999999": {},
    }.items():  # fmt: skip
        assert offsets(shell, made, "--time", moment) == wanted, moment
    newest = offsets(shell, made, "--time", "max-timestamp")
    assert newest.keys() == filled.keys()
    assert all(0 <= offset < ends[number] for number, offset in newest.items())
    assert offsets(shell, made, "--partitions", "0,2") == {number: ends[number] for number in (0, 2)}
    chosen = shell(OFFSETS, "--topic-partitions", f"{made}:1-2,{made}:0").lines
    assert chosen == [f"{made}:{number}:{ends[number]}" for number in (0, 1)]
    assert "Could not match any topic-partitions" in shell(OFFSETS, "--topic", f"{made}-none", code=1).err

    def delete(offset: int, name: str = made) -> EndedTool:
        file = tmp_path / "offsets.json"
        rows = [{"topic": name, "partition": number, "offset": offset} for number in filled]
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        return shell(DELETE_RECORDS, "--offset-json-file", str(file))

    assert set(delete(1).lines[2:]) == {f"partition: {made}-{number}\tlow_watermark: 1" for number in filled}
    assert offsets(shell, made, "--time", "-2") == {number: int(number in filled) for number in ends}
    assert delete(10_000).out.count("OffsetOutOfRangeException") == len(filled)
    delete(-1)
    assert offsets(shell, made, "--time", "-2") == ends


def test_groups(shell: Shell, made: str, tmp_path: Path) -> None:
    group = f"{made}-group"
    produce(shell, made, keyed(30))
    ends = offsets(shell, made)
    shell(
        CONSUMER, "--topic", made, "--group", group, "--from-beginning", "--max-messages", "30", "--timeout-ms", "20000"
    )

    def rows(*arguments: str, code: int = 0) -> list[list[str]]:
        found = shell(GROUPS, "--group", group, *arguments, code=code).rows
        return sorted(row for row in found if row[0] == group)

    def reset(*arguments: str) -> dict[int, int]:
        return {int(row[2]): int(row[3]) for row in rows("--reset-offsets", *arguments)}

    assert [(int(row[2]), int(row[3]), row[4], row[5]) for row in rows("--describe")] == [
        (number, end, str(end), "0") for number, end in sorted(ends.items())
    ]
    assert rows("--describe", "--state")[0][-3:] == ["-", "Empty", "0"]
    starts = dict.fromkeys(ends, 0)
    topic = ("--topic", made)
    assert reset(*topic, "--to-earliest", "--dry-run") == starts
    assert [int(row[3]) for row in rows("--describe")] == [end for _, end in sorted(ends.items())]
    assert reset("--all-topics", "--to-earliest", "--execute") == starts
    assert reset("--topic", f"{made}:0", "--to-latest", "--execute") == {0: ends[0]}
    assert reset(*topic, "--to-offset", "10000", "--execute") == ends
    back = {number: max(end - 2, 0) for number, end in ends.items()}
    assert reset(*topic, "--shift-by", "-2", "--execute") == back
    plan = tmp_path / "plan.csv"
    plan.write_text(
        shell(GROUPS, "--group", group, "--reset-offsets", *topic, "--to-current", "--dry-run", "--export").out
    )
    assert reset(*topic, "--to-datetime", "2020-01-01T00:00:00.000", "--execute") == starts
    assert reset(*topic, "--by-duration", "PT1H", "--execute") == starts
    assert reset("--from-file", str(plan), "--execute") == back
    assert [int(row[3]) for row in rows("--describe")] == [offset for _, offset in sorted(back.items())]

    deleted = shell(GROUPS, "--group", group, "--delete-offsets", "--topic", f"{made}:0")
    assert [row[2] for row in deleted.rows if row[0] == made] == ["Successful"]
    beyond = shell(GROUPS, "--group", group, "--delete-offsets", "--topic", f"{made}:9")
    assert "UnknownTopicOrPartitionException" in beyond.out
    again = shell(GROUPS, "--group", group, "--delete-offsets", "--topic", f"{made}:0")
    assert [row[2] for row in again.rows if row[0] == made] == ["Successful"], "it has none any more"
    missing = shell(GROUPS, "--group", group, "--delete-offsets", "--topic", f"{made}-none")
    assert "UnknownTopicOrPartitionException" in missing.out
    assert len(rows("--describe")) == PARTITIONS - 1
    unknown = shell(GROUPS, "--group", f"{group}-none", "--delete-offsets", "--topic", made)
    assert "GroupIdNotFoundException" in unknown.out
    gone = shell(GROUPS, "--group", group, "--group", f"{group}-none", "--delete")
    assert f"These consumer groups were deleted successfully: '{group}'" in gone.out
    assert f"Group '{group}-none' could not be deleted due to: {PACKAGE.rpartition('.')[0]}.common.errors." in gone.out
    assert group not in shell(GROUPS, "--list").lines


def test_configs(shell: Shell, made: str) -> None:
    def run(kind: str, *arguments: str, code: int = 0) -> EndedTool:
        return shell(CONFIGS, "--entity-type", kind, *arguments, code=code)

    for wrong in ("nonsense=1", "max.message.bytes=-5"):
        refused = run("topics", "--entity-name", made, "--alter", "--add-config", wrong, code=1)
        assert "InvalidConfigurationException" in refused.err
    named = ("--entity-name", f"{made}-group")
    run("groups", *named, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    for what in (named, ()):
        shown = f"Dynamic configs for group {made}-group are:\n  consumer.session.timeout.ms=50000 "
        assert shown in run("groups", *what, "--describe").out
    refused = run("groups", *named, "--alter", "--add-config", "consumer.session.timeout.ms=1", code=1)
    assert "InvalidConfigurationException" in refused.err
    run("groups", *named, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session" not in run("groups", *named, "--describe").out

    refused = run("brokers", "--entity-name", "1", "--alter", "--add-config", "node.id=7", code=1)
    assert "InvalidRequestException" in refused.err

    def told(which: tuple[str, ...], text: str) -> bool:
        return text in run("brokers", *which, "--describe").out

    for which in (("--entity-default",), ("--entity-name", "1")):
        run("brokers", *which, "--alter", "--add-config", "max.connections=12345")
        until(partial(told, which, "\n  max.connections=12345 "))
        run("brokers", *which, "--alter", "--delete-config", "max.connections")
        until(lambda: not told(("--entity-name", "1"), "max.connections"))


def test_client_metrics(shell: Shell, topic: str) -> None:
    def told(name: str) -> dict[str, str]:
        lines = shell(CLIENT_METRICS, "--describe", "--name", name).lines
        return dict(line.strip().split("=", 1) for line in lines if "=" in line)

    match = "client_software_name=apache.*"
    made = shell(CLIENT_METRICS, "--alter", "--name", topic, "--metrics", "a.b.,c", "--interval", "1000",
                 "--match", match)  # fmt: skip
    assert topic in made.out
    until(lambda: topic in shell(CLIENT_METRICS, "--list").lines)
    assert told(topic) == {"interval.ms": "1000", "metrics": "a.b.,c", "match": match}
    shown = shell(CONFIGS, "--describe", "--entity-type", "client-metrics", "--entity-name", topic).out
    assert f"Dynamic configs for client-metric {topic} are:" in shown
    assert "interval.ms=1000 " in shown
    shell(CONFIGS, "--alter", "--entity-type", "client-metrics", "--entity-name", topic,
          "--add-config", "interval.ms=2000", "--delete-config", "metrics")  # fmt: skip
    until(lambda: told(topic)["interval.ms"] == "2000")
    assert told(topic)["metrics"] == ""
    for wrong, error in (("interval.ms=1", "InvalidRequest"), ("match=nobody", "InvalidConfiguration")):
        refused = shell(CONFIGS, "--alter", "--entity-type", "client-metrics", "--entity-name", topic,
                        "--add-config", wrong, code=1)  # fmt: skip
        assert f"{error}Exception" in refused.err
    shell(CLIENT_METRICS, "--delete", "--name", topic)
    until(lambda: topic not in shell(CLIENT_METRICS, "--list").lines)


def test_what_only_a_quorum_of_controllers_has(jvm: KafkaTools, gateway: str) -> None:
    refused = Shell(jvm, gateway)(QUORUM, "describe", "--status", code=1)
    assert "UnsupportedVersionException" in refused.err
    assert (
        "does not support the broker unregistration API" in Shell(jvm, gateway)(CLUSTER, "unregister", "--id", "1").out
    )


def test_quotas(shell: Shell, topic: str) -> None:
    """Set, shown and removed, for users, client ids, both, addresses, and the defaults of each."""
    user, rate = f"{topic} user", "connection_creation_rate"
    named = {
        f"user-principal '{user}'": ("--user", user),
        "the default user-principal": ("--user-defaults",),
        f"client-id '{topic}'": ("--entity-type", "clients", "--entity-name", topic),
        "the default client-id": ("--entity-type", "clients", "--entity-default"),
        f"user-principal '{user}', client-id '{topic}'": ("--user", user, "--client", topic),
        f"user-principal '{user}', the default client-id": ("--user", user, "--client-defaults"),
        "ip '10.9.8.7'": ("--ip", "10.9.8.7"),
        "the default ip": ("--ip-defaults",),
    }
    of_clients = {"producer_byte_rate": "1000000", "request_percentage": "12345.5", "controller_mutation_rate": "1000"}

    def told(entity: str, value: str | None) -> bool:
        shown = shell(CONFIGS, *named[entity], "--describe").out
        heading = f"Quota configs for {entity} are "
        return heading not in shown if value is None else heading in shown and value in shown

    for entity, options in named.items():
        quotas = {rate: "1000"} if "ip" in entity.split() else of_clients
        given = ",".join(f"{name}={value}" for name, value in quotas.items())
        changed = shell(CONFIGS, *options, "--alter", "--add-config", given)
        assert "Completed updating" in changed.out
        for name, value in quotas.items():
            until(partial(told, entity, f"{name}={float(value)}"))
    everything = shell(CONFIGS, "--entity-type", "users", "--describe").out
    assert f"Quota configs for user-principal '{user}' are " in everything
    both = shell(CONFIGS, "--entity-type", "users", "--entity-type", "clients", "--describe").out
    assert f"Quota configs for user-principal '{user}', client-id '{topic}' are " in both
    assert "Quota configs for ip '10.9.8.7' are " in shell(CONFIGS, "--entity-type", "ips", "--describe").out
    for entity, options in named.items():
        names = rate if "ip" in entity.split() else ",".join(of_clients)
        shell(CONFIGS, *options, "--alter", "--delete-config", names)
        until(partial(told, entity, None))
    for wrong in ("producer_byte_rate=-1", "consumer_byte_rate=0", "request_percentage=0"):
        refused = shell(CONFIGS, "--user", user, "--alter", "--add-config", wrong, code=1)
        assert "must be greater than 0" in refused.err
    refused = shell(CONFIGS, "--ip", "no.host.invalid", "--alter", "--add-config", f"{rate}=1", code=1)
    assert "must be a valid IP or resolvable host" in refused.err


def test_one_nodes_partitions_are_where_they_are(shell: Shell, made: str, tmp_path: Path) -> None:
    moves, topics = tmp_path / "moves.json", tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": made}]}))
    generated = shell(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1").lines
    assert [row["replicas"] for row in json.loads(generated[3])["partitions"]] == [[1]] * PARTITIONS

    def reassign(what: str, *, replicas: int = 1, code: int = 0) -> EndedTool:
        rows = [{"topic": made, "partition": number, "replicas": [replicas]} for number in range(PARTITIONS)]
        moves.write_text(json.dumps({"version": 1, "partitions": rows}))
        return shell(REASSIGN, what, "--reassignment-json-file", str(moves), code=code)

    assert "Successfully started partition reassignments" in reassign("--execute").out
    assert reassign("--verify").out.count("is completed.") == PARTITIONS
    assert "Unknown broker id 9" in reassign("--execute", replicas=9, code=1).out
    assert "None of the specified partition reassignments are active." in reassign("--cancel").out
    assert shell(REASSIGN, "--list").lines == ["No partition reassignments found."]

    for kind in ("preferred", "unclean"):
        elected = shell(ELECT, "--election-type", kind, "--topic", made, "--partition", "0")
        assert elected.lines == [f"Valid replica already elected for partitions {made}-0"]
    missing = shell(ELECT, "--election-type", "preferred", "--topic", made, "--partition", "9", code=1)
    assert f"for partition: {made}-9: org.apache.kafka.common.errors.UnknownTopicOrPartitionException" in missing.out


def test_transactions(shell: Shell, made: str) -> None:
    shell(PERFORMANCE, "--topic", made, "--num-records", "100", "--record-size", "10", "--throughput", "-1",
          "--transactional-id", made, "--transaction-duration-ms", "10")  # fmt: skip
    until(lambda: "CompleteCommit" in shell(TRANSACTIONS, "describe", "--transactional-id", made).out)
    assert made in {each[0] for each in shell(TRANSACTIONS, "list", "--transactional-id-pattern", f"{made}.*").rows}
    assert made not in shell(TRANSACTIONS, "list", "--duration-filter", "100000").out
    assert len(shell(TRANSACTIONS, "find-hanging", "--topic", made).lines) == 1
    shell(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", made)
    unknown = shell(TRANSACTIONS, "describe", "--transactional-id", f"{made}-none", code=1)
    assert "the ID could not be found" in unknown.err
    assert shell(TRANSACTIONS, "abort", "--topic", made, "--partition", "0", "--start-offset", "0", code=1).err


def test_the_cluster(shell: Shell, made: str) -> None:
    assert shell(CLUSTER, "cluster-id").out.startswith("Cluster ID: ")
    head, node = shell(CLUSTER, "list-endpoints").rows
    assert head[:3] == ["ID", "HOST", "PORT"]
    assert node[:3] == ["1", *shell.bootstrap.split(":")]
    told = shell(VERSIONS).out
    assert told.startswith(f"{shell.bootstrap} (id: 1 rack: null")
    assert "Produce(0): 0 to 13 [usable: 13]" in told
    assert "ShareAcknowledge(79): 1 to 2 [usable: 2]" in told
    produce(shell, made, keyed(5))
    sizes = json.loads(shell(LOG_DIRS, "--describe", "--topic-list", made).lines[-1])
    (broker,) = sizes["brokers"]
    (folder,) = broker["logDirs"]
    assert {each["partition"]: each["size"] > 0 for each in folder["partitions"]} == {
        f"{made}-{number}": end > 0 for number, end in offsets(shell, made).items()
    }
    shell(LOG_DIRS, "--describe", "--broker-list", "9", code=1)


@pytest.mark.long
@pytest.mark.parametrize("acks", ["1", "all"])
def test_performance(jvm: KafkaTools, shell: Shell, made: str, acks: str) -> None:
    """What each tool wrote and read is told with what it took; the numbers are not compared."""
    count = 50_000
    written = shell(PERFORMANCE, "--topic", made, "--num-records", str(count), "--record-size", "100",
                    "--throughput", "-1", "--command-property", f"acks={acks}", "linger.ms=5")  # fmt: skip
    assert written.lines[-1].startswith(f"{count} records sent, ")
    assert sum(offsets(shell, made).values()) == count
    for protocol in ("classic", "consumer"):
        read = shell(CONSUMER_PERFORMANCE, "--topic", made, "--num-records", str(count), "--timeout", "30000",
                     "--group", f"{made}-{protocol}", "--command-property", f"group.protocol={protocol}")  # fmt: skip
        head, row = (line.split(", ") for line in read.lines)
        assert int(dict(zip(head, row, strict=True))["data.consumed.in.nMsg"]) == count
    shell(CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", f"{made}-share",
          "--add-config", "share.auto.offset.reset=earliest")  # fmt: skip
    read = shell(SHARE_PERFORMANCE, "--topic", made, "--num-records", str(count), "--timeout", "30000",
                 "--group", f"{made}-share", "--threads", "2")  # fmt: skip
    assert "WARNING" not in read.out
    assert str(count) in read.lines[-1].split(", ")
    times = shell(END_TO_END, "--topic", f"{made}-new", "--num-records", "300", "--producer-acks", acks,
                  "--record-size", "100")  # fmt: skip
    assert times.lines[-1].startswith("Percentiles: 50th = ")
