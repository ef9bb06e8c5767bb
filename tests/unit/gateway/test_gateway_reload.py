"""Settings and certificates that are read again while a gateway runs."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from kclient.gateway import Gateway, Reloaded
from kclient.htp.errors import HtpError
from tests.gateway_tls import broker_authority, gateway_settings
from tests.gateway_wire import batch_of, names, running

pytestmark = pytest.mark.anyio

BROKER = 4


async def test_what_changes_at_once() -> None:
    given = {"num.partitions": 2, "log.retention.hours": 5, "node.id": 3, "num.io.threads": 4}
    async with running(config=given) as (gateway, wire):
        await wire.create("before")
        anew = {"num.partitions": 3, "auto.create.topics.enable": "true", "node.id": 3, "broker.rack": "r2"}
        found = await gateway.reload(anew)
        assert found == Reloaded(
            changed=("auto.create.topics.enable", "log.retention.hours", "num.partitions"), restart=("broker.rack",)
        )
        assert list(found.lines()) == [
            "settings changed: auto.create.topics.enable, log.retention.hours, num.partitions",
            "settings that only a restart changes: broker.rack",
        ]
        await wire.metadata("made", create=True)
        assert gateway.parts.topics.get("made").partitions == 3  # type: ignore[union-attr]
        record = gateway.parts.topics.get("before")
        assert record is not None
        assert record.config.retention_ms == 168 * 3_600_000, "what is not given any more has its default again"
        again = await gateway.reload(anew)
        assert again == Reloaded(restart=("broker.rack",))
        assert again.left_undone


async def test_the_wrong_file_holds_nobody_up() -> None:
    async with running() as (gateway, _wire):
        gaps: list[float] = []
        garbage = {f"kclient.gateway.line.{number}": "of a log" for number in range(5000)}
        async with anyio.create_task_group() as tasks:

            async def look() -> None:
                while True:
                    before = anyio.current_time()
                    await anyio.sleep(0.001)
                    gaps.append(anyio.current_time() - before)

            tasks.start_soon(look)
            await anyio.sleep(0.02)
            with anyio.fail_after(10):
                found = await gateway.reload(garbage)
            tasks.cancel_scope.cancel()
        assert found.refused is not None
        assert "and 4980 more" in found.refused
        assert len(found.refused) < 5000
        assert max(gaps) < 0.25, gaps


async def test_what_alter_configs_has_set_stays() -> None:
    async with running(config={"num.partitions": 2}) as (gateway, wire):
        assert await wire.alter(BROKER, "1", ("num.partitions", 0, "7")) == 0
        found = await gateway.reload({"num.partitions": 3})
        assert found == Reloaded(altered=("num.partitions",))
        assert gateway.parts.config.get_int("num.partitions") == 7
        assert await wire.alter(BROKER, "1", ("num.partitions", 1, None)) == 0
        assert gateway.parts.config.get_int("num.partitions") == 3, "what is given by now is below it"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"num.partition": 3}, "did you mean num.partitions"),
        ({"num.partitions": "many"}, "many"),
        ({"group.min.session.timeout.ms": 70_000, "group.max.session.timeout.ms": 60_000}, "nobody could join"),
        ({"max.connections.per.ip": 0}, "max.connections.per.ip"),
    ],
)
async def test_what_is_wrong_changes_nothing(config: dict[str, object], reason: str) -> None:
    async with running(config={"num.partitions": 2}) as (gateway, wire):
        found = await gateway.reload({"log.retention.hours": 1, **config})
        assert reason in (found.refused or "")
        assert found.left_undone
        assert gateway.parts.config.get_int("num.partitions") == 2
        assert gateway.parts.config.get_int("log.retention.hours") == 168
        assert (await wire.create("t")).error_code == 0


async def test_with_what_alter_configs_has_set_it_has_to_go_together() -> None:
    async with running() as (gateway, wire):
        assert await wire.alter(BROKER, "1", ("group.min.session.timeout.ms", 0, "50000")) == 0
        found = await gateway.reload({"group.max.session.timeout.ms": 40_000})
        assert "nobody could join" in (found.refused or "")


async def test_nothing_is_taken_for_a_change_that_is_none() -> None:
    async with running(config={"node.id": -1}) as (gateway, _):
        assert await gateway.reload({"node.id": -1}) == Reloaded()
        assert list((await gateway.reload({"node.id": "-1"})).lines()) == ["no setting has changed"]


async def test_certificates_are_read_again(tmp_path: Path) -> None:
    settings = gateway_settings(tmp_path)
    async with Gateway(f"memory:{next(names)}", config=settings) as gateway:
        before = {each.name: await each.tls.context() for each in gateway._listeners if each.tls is not None}
        found = await gateway.reload(settings)
        assert found.certificates == dict.fromkeys(before)
        assert not found.left_undone
        for each in gateway._listeners:
            if each.tls is not None:
                assert await each.tls.context() is not before[each.name]
        Path(settings["ssl.keystore.location"]).write_text("no certificate")
        found = await gateway.reload(None)
        assert found.left_undone
        assert all(found.certificates.values())
        assert "certificates of the listener" in "".join(found.lines())
        broker_authority().issue("localhost").write(tmp_path / "gateway.pem")
        assert set((await gateway.reload(None)).certificates.values()) == {None}


async def test_passwords_and_listeners_are_told_by_name_alone(tmp_path: Path) -> None:
    settings = gateway_settings(tmp_path)
    async with Gateway(f"memory:{next(names)}", config=settings) as gateway:
        jaas = "listener.name.login.plain.sasl.jaas.config"
        changed = {**settings, jaas: settings[jaas].replace('"', '"new', 1), "ssl.key.password": "hush"}
        found = await gateway.reload(changed)
        assert sorted(found.restart) == [jaas, "ssl.key.password"]
        assert "hush" not in "".join(found.lines())


async def test_connections_go_on_amid_reloads() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        async with anyio.create_task_group() as tasks:

            async def reload() -> None:
                for number in range(20):
                    await gateway.reload({"num.partitions": number + 1})

            tasks.start_soon(reload)
            for _ in range(20):
                assert (await wire.produce("t", batch_of(b"x"))).error_code == 0
        assert gateway.parts.config.get_int("num.partitions") == 20


async def test_what_alter_configs_has_set_is_in_force_once_it_goes_together_with_the_file(tmp_path: Path) -> None:
    least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    store = f"embedded:{tmp_path / 'data'}"
    async with running(store, config={most: 90_000}) as (_, wire):
        assert await wire.alter(BROKER, "1", (least, 0, "80000")) == 0
    async with running(store, config={most: 60_000}) as (gateway, _):
        config = gateway.parts.config
        assert config.get_int(least) == 6000
        await gateway.reload({most: 70_000})
        assert config.get_int(least) == 6000
        await gateway.reload({most: 90_000})
        assert config.get_int(least) == 80_000, "as after a restart"


async def test_what_not_all_have_taken_over_is_taken_over_the_next_time() -> None:
    async with running(config={"num.partitions": 2}) as (gateway, _):
        seen: list[int] = []

        async def take_over() -> None:
            seen.append(gateway.parts.config.get_int("num.partitions"))
            if len(seen) == 1:
                raise HtpError("the store has failed")

        gateway.parts.dynamic.hold_for(take_over)
        with pytest.raises(HtpError):
            await gateway.reload({"num.partitions": 3})
        await gateway.reload({"num.partitions": 3})
        assert seen == [3, 3]
        await gateway.reload({"num.partitions": 3})
        assert seen == [3, 3]
