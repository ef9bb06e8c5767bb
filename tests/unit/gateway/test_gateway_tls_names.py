"""Who a certificate is for: names as Java spells them, and rules that make users of them."""

from __future__ import annotations

import random
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kclient.errors import ConfigError
from kclient.gateway.security.distinguished_names import shown_name, subject_of
from kclient.gateway.security.principal_rules import PrincipalRules
from tests.certificates import Authority
from tests.distinguished_names import SPELLED, random_names

NAME = "CN=alice,OU=ServiceUsers,O=Org,L=Town,ST=State,C=DE"


@pytest.mark.parametrize("name", SPELLED, ids=[ascii(spelled) for spelled in SPELLED.values()])
def test_names_as_java_spells_them(name: bytes) -> None:
    assert shown_name(name) == SPELLED[name]


def test_the_subject_of_a_certificate() -> None:
    parts = [(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Org, Inc."), (NameOID.COMMON_NAME, "alice")]
    subject = x509.Name([x509.NameAttribute(kind, text) for kind, text in parts])
    certificate = x509.load_pem_x509_certificate(Authority().issue_for(subject).chain.encode())
    assert subject_of(certificate.public_bytes(Encoding.DER)) == r"CN=alice,O=Org\, Inc.,C=DE"


@pytest.mark.slow
def test_what_is_no_name_is_refused_whatever_it_is() -> None:
    """Cut off and changed in any place: an error of one kind, or another name."""
    rng = random.Random(11)
    for name in random_names(12, 200):
        for end in range(len(name)):
            with pytest.raises(ValueError):
                shown_name(name[:end])
        for _ in range(50):
            damaged = bytearray(name)
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            for read in (shown_name, subject_of):
                try:
                    assert isinstance(read(bytes(damaged)), str)
                except ValueError:
                    continue


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "alice"),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/,DEFAULT", NAME),
        ("RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/L", "alice@serviceusers"),
        ("RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/U", "ALICE@SERVICEUSERS"),
        ("RULE:^CN=(.*?),.*$/$1@$2/", "alice@$2"),
        ("RULE:.*/x/", "xx"),
        ("RULE:.+/x/", "x"),
        (r"RULE:^CN=(?<who>\w+),.*/${who}\/x/", "alice/x"),
        ("RULE:CN=alice/x/", None),
        ("RULE:(a)(b)?.*/$2/,DEFAULT", NAME),
    ],
)
def test_rules(rules: str, user: str | None) -> None:
    assert PrincipalRules(rules).user_of(NAME) == user


def test_names_that_are_made_to_keep_a_rule_busy() -> None:
    """The rule of Kafka's own documentation, and a subject that almost matches in a hundred million ways."""
    rules = PrincipalRules("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT")
    name = "CN=a" + "".join(f",{kind}=b" * 40 for kind in ("OU", "O", "L", "ST"))
    began = time.process_time()
    assert rules.user_of(name) == name
    assert (rules.user_of(f"{name},C=DE") or "").startswith("a@b,ou=b,")
    assert time.process_time() - began < 2


KINDS = ("OU", "O", "L", "ST", "C")
ALMOST = "CN=a" + "".join(f",{kind}=" * 30 for kind in KINDS)
SIX = ",".join(f"{kind}=(.*?)" for kind in ("CN", *KINDS))


@pytest.mark.parametrize("line_break", ["\r", "\x85", "\u2028", "\u2029"])
def test_names_that_match_but_for_a_line_break(line_break: str) -> None:
    """Which `.` takes in RE2, and neither in Java nor here."""
    rules = PrincipalRules(f"RULE:^{SIX}$/$1@$2/L,DEFAULT")
    name = f"{ALMOST}{line_break}b"
    began = time.process_time()
    assert rules.user_of(name) == name
    assert time.process_time() - began < 2


@pytest.mark.parametrize("letter", ["\u0131", "\u017f", "\u212a"])
def test_names_that_match_but_for_a_letter_that_is_like_one_of_ascii(letter: str) -> None:
    rules = PrincipalRules(f"RULE:(?i)^{SIX}[isk]$/$1@$2/L,DEFAULT")
    began = time.process_time()
    assert rules.user_of(ALMOST + letter) == ALMOST + letter
    assert rules.user_of("CN=a,ou=b,o=,l=,st=,c=,K") == "a@b"
    assert time.process_time() - began < 2


@pytest.mark.parametrize("end", [r"\Z", r"\z", r"\u0061\Z", r"\x61$", r"\u0061*(?<rest>x?)"])
def test_what_java_writes_otherwise_keeps_no_rule_busy(end: str) -> None:
    rules = PrincipalRules(f"RULE:^CN=([a-z]+)+{end}/<$1>/,DEFAULT")
    began = time.process_time()
    assert rules.user_of(f"CN={'a' * 60}!") == f"CN={'a' * 60}!"
    assert time.process_time() - began < 2
    assert (rules.user_of("CN=aba") or "").startswith("<ab")


def test_what_follows_a_match_keeps_no_rule_busy() -> None:
    """Without `^` and `$` the rest of the name is searched for more of them, as in Java."""
    rules = PrincipalRules(f"RULE:{SIX}/<$1>/")
    name = "CN=a,OU=b,O=c,L=d,ST=e,C=f"
    began = time.process_time()
    rest = "".join(f",{kind}=" * 30 for kind in ("CN", *KINDS[:-1]))
    assert rules.user_of(name + rest) == f"<a>f{rest}"
    assert time.process_time() - began < 2
    assert rules.user_of(f"{name},{name}") == "<a>f,<a>f"


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ("", "is empty"),
        (" , ", "is empty"),
        ("RULE:x/y", "is no rule; one is"),
        ("RULE:x/y/Z", "is no rule; one is"),
        ("default", "is no rule; one is"),
        ("rubbish\nDEFAULT", "no comma behind it"),
        ("RULE:(/x/", "cannot be read"),
        ("RULE:.*/$1/", "names the group 1, and the pattern has 0"),
        ("RULE:.*/${who}/", "names the group 'who'"),
        ("RULE:.*/$/", "without a group behind it"),
        (r"RULE:\p{L}*/x/", r"has \\p, which cannot be read here"),
        (r"RULE:[a-z&&[^b]]*/x/", "has && between brackets"),
        ("RULE:(?x)a/x/", r"has \(\?x\)"),
    ],
)
def test_rules_that_are_none(rules: str, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"ssl\.principal\.mapping\.rules.*{error}"):
        PrincipalRules(rules)
