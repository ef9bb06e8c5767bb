"""Principals of TLS beside Java's own: how it spells names of certificates, and what Kafka's rules make of them."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kclient.errors import ConfigError
from kclient.gateway.security.distinguished_names import shown_name
from kclient.gateway.security.principal_rules import PrincipalRules
from tests.distinguished_names import SPELLED, random_names

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "TlsPrincipalsOracle.java"
NAMES = [
    "CN=alice,OU=ServiceUsers,O=Org,L=Town,ST=State,C=DE",
    "CN=Alice,OU=admin,O=Org",
    "CN=kafka-server1, OU=KAFKA",
    "OU=JavaSoft,O=Sun Microsystems",
    "cn=bob,ou=x",
    "CN=Ümlaut ß,OU=x",
    "CN=a/b\\,c,OU=x",
    "CN=line\nbreak,OU=x",
    "CN=end\n",
    "CN=end\r\n",
    "",
]
RULES = [
    "DEFAULT",
    " DEFAULT ",
    "DEFAULT,DEFAULT",
    "default",
    "DEFAULT,",
    ",DEFAULT",
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
    ),
    r"RULE:^CN=(.*?), OU=(.*?)$/$1/L",
    "RULE:^CN=(.*?),OU=.*$/$1/U",
    "RULE:^CN=(.*?),.*$/$1@$2/,DEFAULT",
    "RULE:^CN=(.*?),.*$/$0/",
    "RULE:^CN=(.*?),.*$/$10x/",
    "RULE:^CN=(.*?),.*$/$2 $3/",
    "RULE:^CN=(.*?),.*$/$2/",
    "RULE:^CN=(.*?),.*$/$01/",
    "RULE:^(C)(N)(=)(a)(l)(i)(c)(e)(,)(O)(U)(=).*$/$12$11$10$9$123/",
    "RULE:.*/x/",
    "RULE:.*/x$1/",
    "RULE:.+/x/",
    "RULE:.*/$0/",
    "RULE:.*//",
    "RULE:(.*)/$1/",
    "RULE:^(.*)$/$1/",
    "RULE:()/x/",
    "RULE://x/",
    "RULE:[^,]*(,.*)?/x$1/",
    "RULE:CN=(?<who>[^,]*).*/${who}/",
    "RULE:CN=(?<who>[^,]*).*/${other}/",
    "RULE:CN=(?<who>[^,]*),OU=.*/${who/",
    r"RULE:CN=(.*?)\/(.*?),.*/$1\/$2/",
    r"RULE:CN=(.*?),.*/\$1/",
    r"RULE:CN=(.*?),.*/$1\\/",
    r"RULE:CN=(.*?),.*/\n/",
    "RULE:CN=(.*?),.*/$/",
    "RULE:CN=(.*?),.*/$x/",
    "RULE:CN=(a)?(.*?),.*/$1-$2/",
    "RULE:(?i)cn=(.*?),.*/$1/L",
    r"RULE:CN=(\w+),.*/$1/",
    r"RULE:CN=([\w ]+),.*/$1/U",
    r"RULE:CN=(\S+)\s*.*/$1/U",
    r"RULE:CN=(.*?)\Q,OU=x\E/$1/U",
    r"RULE:CN=([^,]*)(,.*)?\z/$1/",
    r"RULE:CN=end\Z/x/",
    "RULE:CN=end$/x/",
    "RULE:CN=line.break.*/x/",
    r"RULE:CN=line\nbreak.*/x/",
    r"RULE:CN=\u00dcmlaut (.*),.*/$1/U",
    "RULE:CN=(.*),.*/$1/X",
    "RULE:CN=(.*),.*/$1/LU",
    "RULE:CN=(.*),.*/$1/ L",
    "RULE:CN=(.*),.*/$1",
    "RULE:CN=(.*),.*",
    "RULE:",
    "RULE:a/b/c/d",
    "RULE:(/x/",
    "RULE:[/x/",
    "RULE:*/x/",
    "RULE:a{2,1}/x/",
    "something",
    "DEFAULTS",
    "RULE:x/y/,something,DEFAULT",
    "RULE:x/y/ DEFAULT",
]


@pytest.fixture(scope="module")
def java(kafka_jars_4: Path) -> Callable[[Iterable[str]], list[str | None]]:
    """What Java makes of each line; None for an exception."""

    def ask(lines: Iterable[str]) -> list[str | None]:
        command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE)]
        result = subprocess.run(
            command, input="\n".join(lines), capture_output=True, text=True, timeout=120, check=True, encoding="utf-8"
        )
        told = result.stdout.splitlines()
        return [bytes.fromhex(line[1:]).decode() if line.startswith("=") else None for line in told]

    return ask


def test_names(java: Callable[[Iterable[str]], list[str | None]]) -> None:
    names = [*SPELLED, *random_names(47, 4000)]
    theirs = java(f"N {name.hex()}" for name in names)
    assert theirs[: len(SPELLED)] == list(SPELLED.values())
    assert len(theirs) == len(names)
    for name, spelled in zip(names, theirs, strict=True):
        assert spelled is None or shown_name(name) == spelled, name.hex()
    assert theirs.count(None) < len(names) // 10


def test_rules(java: Callable[[Iterable[str]], list[str | None]]) -> None:
    pairs = list(itertools.product(RULES, NAMES))
    theirs = java(f"R {rules.encode().hex()} {name.encode().hex()}" for rules, name in pairs)
    wrong = []
    for (rules, name), user in zip(pairs, theirs, strict=True):
        try:
            ours = PrincipalRules(rules).user_of(name)
        except ConfigError:
            ours = None  # with Kafka no connection gets through, or the broker does not start
        if ours != user:
            wrong.append((rules, name, user, ours))
    assert not wrong
