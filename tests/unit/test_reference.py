"""The reference pages of protocol, net and security: no module is missing, and their programs run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

import kclient
from kclient.config.secret import Secret
from kclient.errors import SaslAuthenticationError
from kclient.gateway import Gateway
from kclient.net.sasl.scram import ScramCredential
from kclient.net.sasl.session import server_mechanisms
from kclient.protocol import ApiKey
from tests.unit.net.sasl.authentication_peers import peer

PACKAGE = Path(kclient.__file__).parent
REFERENCE = PACKAGE.parent / "docs" / "reference"


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (REFERENCE / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("folder", ["protocol", "protocol/messages", "net", "net/sasl"])
def test_every_module_is_in_the_reference(folder: str) -> None:
    named = set(re.findall(r"^::: (\S+)", "\n".join(page.read_text() for page in REFERENCE.glob("*.md")), re.MULTILINE))
    modules = {path.stem for path in (PACKAGE / folder).glob("*.py") if not path.stem.startswith("_")}
    expected = {f"kclient.{folder.replace('/', '.')}.{name}" for name in modules}
    assert expected
    assert expected - named == set()


def test_the_programs_of_the_protocol_page() -> None:
    found = programs("protocol.md")
    assert len(found) == 3
    for program in found:
        exec(program, {})


@pytest.mark.anyio
async def test_the_program_of_the_net_page(anyio_backend_name: str) -> None:
    program, _ = programs("net.md")
    names: dict[str, object] = {}
    exec(program, names)
    topics = names["topics"]
    assert callable(topics)
    with anyio.fail_after(20):
        async with Gateway(htp=f"memory:reference-{anyio_backend_name}", listen="127.0.0.1:0") as gateway:
            async with kclient.Admin(bootstrap_servers=gateway.bootstrap) as admin:
                await admin.create_topic("flights")
            assert await topics(gateway.bootstrap) == ["flights"]


@pytest.mark.anyio
async def test_the_program_of_the_security_page(anyio_backend_name: str) -> None:
    program, _ = programs("security.md")
    names: dict[str, object] = {}
    exec(program, names)
    versions = names["versions"]
    assert callable(versions)
    known = {"alice": ScramCredential.derive("SCRAM-SHA-512", "x")}
    with anyio.fail_after(20):
        async with peer(mechanisms=server_mechanisms(scram_sha_512=known.get)) as server:
            listener = await server.server.listen_tcp("127.0.0.1", 0)
            assert ApiKey.SASL_HANDSHAKE in await versions(str(listener.address), "alice", "x")
            with pytest.raises(SaslAuthenticationError):
                await versions(str(listener.address), "alice", "y")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("page", "printed"),
    [("net.md", r"\['flights'\]\n\d+ requests\n"), ("security.md", "PLAIN alice\nSCRAM-SHA-512 alice\n")],
)
async def test_the_servers(
    page: str, printed: str, anyio_backend_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second program of a page is a server with a client of its own."""
    _, program = programs(page)
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, page, "exec"), names)
    with anyio.fail_after(20):
        await names["main"]()
    assert re.fullmatch(printed, capsys.readouterr().out)


def test_the_check_of_the_security_page() -> None:
    _, program = programs("security.md")
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    assert names["check"]("alice", Secret("wonderland"))
    assert not names["check"]("alice", Secret("Wonderland"))
    assert not names["check"]("bob", Secret("wonderland"))
