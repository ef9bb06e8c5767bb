"""The settings of SASL: what they mean together, what contradicts, and that no credential is ever shown."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kclient
from kclient.admin import DelegationToken
from kclient.config import AdminConfig, ProducerConfig
from kclient.config.jaas import parse_jaas
from kclient.config.sasl_credentials import ClientCredentials, OAuthCredentials, PasswordCredentials, UnsecuredToken
from kclient.config.secret import Secret
from kclient.errors import ConfigError, KafkaError, NotYetSupportedError

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "security.md"
PACKAGE = "org.apache.kafka.common.security"
PLAIN = f'{PACKAGE}.plain.PlainLoginModule required username="alice" password="geheim";'
SCRAM = f'{PACKAGE}.scram.ScramLoginModule required username="alice" password="geheim";'
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
UNSECURED = f"{OAUTH} required unsecuredLoginStringClaim_sub=a"


class NeedsMuch:
    """No source of tokens."""

    def __init__(self, vault: object) -> None:
        self.vault = vault

    def __call__(self, config: object) -> str:
        return f"{self.vault}{config}"


def resolve(mechanism: str = "PLAIN", **settings: Any) -> Any:
    base = {"bootstrap_servers": "a:1", "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    return ProducerConfig.parse(**{**base, **settings}).sasl_credentials


def refused(*args: Any, **settings: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        resolve(*args, **settings)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "geheim" not in shown
    return str(caught.value)


# --- JAAS


@pytest.mark.parametrize(
    ("text", "module", "options"),
    [
        (PLAIN, "PlainLoginModule", {"username": "alice", "password": "geheim"}),
        ("a.b.X REQUIRED;", "X", {}),
        ("X optional a='it''s' ;", "X", None),
        ("X required a='b\"c' d = e\n f=5 ;", "X", {"a": 'b"c', "d": "e", "f": "5"}),
        (r'X required a="q\"\\\n\t\101\57";', "X", {"a": 'q"\\\n\tA/'}),
        ("// a comment\nX /* one\nmore */ required a-b=c.d-e_f$g ;", "X", {"a-b": "c.d-e_f$g"}),
        ('X required p="a;b=c // no comment";', "X", {"p": "a;b=c // no comment"}),
        ("X required p=grün;", "X", {"p": "grün"}),
    ],
)
def test_jaas(text: str, module: str, options: dict[str, str] | None) -> None:
    if options is None:
        with pytest.raises(ConfigError):
            parse_jaas(text)
        return
    entry = parse_jaas(text)
    assert entry.module == module
    assert {name: value.reveal() for name, value in entry.options.items()} == options
    assert "geheim" not in repr(entry)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 login modules"),
        ("X required; Y required;", "2 login modules"),
        ("X", "comes a flag"),
        ('X username="alice" password="geheim";', "comes a flag"),
        ("= required;", "begin with the class"),
        ("X required a=geheim", "semicolon"),
        ("X required a=", "option 1 has no value"),
        ("X required password=a geheim;", "option 2 has no value"),
        ("X required a=;", "option 1 has no value"),
        ("X required =geheim;", "no name"),
        ('X required a="geheim;', "quote"),
        ("X required a=ge,heim;", "quote is not closed, or there is an unexpected character"),
        ('X required password="a" "geheim";', "option 2 has no value"),
    ],
)
def test_malformed_jaas_is_named_and_not_shown(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_jaas(text)
    assert "geheim" not in str(caught.value)
    assert str(caught.value).startswith("sasl.jaas.config: ")


@pytest.mark.slow
@settings(max_examples=200)
@given(st.text("Xr ;=\"'\\/*\n.a", max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, f"X required {text}", f"X required a={text};"):
        with contextlib.suppress(ConfigError):
            assert parse_jaas(candidate).module


# --- names and passwords


@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        ("PLAIN", {"sasl_jaas_config": PLAIN}),
        ("plain", {"sasl_username": "alice", "sasl_password": "geheim"}),
        ("SCRAM-SHA-256", {"sasl_jaas_config": SCRAM}),
        ("SCRAM-SHA-512", {"sasl_jaas_config": Secret(SCRAM.replace("required", 'required tokenauth="true"'))}),
        ("scram-sha-512", {"sasl_username": "alice", "sasl_password": Secret("geheim")}),
        ("SCRAM-SHA-256", {"sasl_username": "alice", "sasl_password": "geheim", "sasl_tokenauth": "true"}),
        ("SCRAM-SHA-256", {"sasl_username": "alice", "sasl_password": "geheim", "sasl_tokenauth": False}),
    ],
)
def test_passwords(mechanism: str, settings: Any) -> None:
    by_token = (
        "tokenauth" in Secret(settings.get("sasl_jaas_config", "")).reveal() or settings.get("sasl_tokenauth") == "true"
    )
    assert resolve(mechanism, **settings) == PasswordCredentials(mechanism.upper(), "alice", Secret("geheim"), by_token)


URL_SETTING = "sasl_oauthbearer_token_endpoint_url"
ID = "sasl_oauthbearer_client_credentials_client_id"
SECRET_SETTING = "sasl_oauthbearer_client_credentials_client_secret"


@pytest.mark.parametrize(
    ("mechanism", "name", "value", "others"),
    [
        ("PLAIN", "sasl_password", "geheim\udcff", {"sasl_username": "a"}),
        ("SCRAM-SHA-256", "sasl_password", Secret("geheim\udcff"), {"sasl_username": "a"}),
        ("PLAIN", "sasl_jaas_config", PLAIN.replace("geheim", "geheim\udcff"), {}),
        ("PLAIN", "sasl_username", "al\ud800ice", {"sasl_password": "geheim"}),
        ("OAUTHBEARER", SECRET_SETTING, "geheim\udcff", {ID: "me", URL_SETTING: "https://id/"}),
        ("OAUTHBEARER", ID, "m\udcff", {SECRET_SETTING: "geheim", URL_SETTING: "https://id/"}),
        ("OAUTHBEARER", URL_SETTING, "https://id/?key=geheim\udcff", {SECRET_SETTING: "geheim", ID: "me"}),
        (
            "OAUTHBEARER",
            "sasl_oauthbearer_scope",
            "x\udcff",
            {SECRET_SETTING: "x", ID: "x", URL_SETTING: "https://id/"},
        ),
        ("PLAIN", "ssl_key_password", "geheim\udcff", {"sasl_username": "a", "sasl_password": "x"}),
        ("PLAIN", "client_id", "x\udcff", {"sasl_username": "a", "sasl_password": "x"}),
    ],
)
def test_text_that_utf8_cannot_carry(mechanism: str, name: str, value: Any, others: Any) -> None:
    """The environment makes such texts, of bytes that are not UTF-8."""
    with pytest.raises(ConfigError, match="UTF-8") as caught:
        resolve(mechanism, **{name: value}, **others)
    assert name.replace("_", ".") in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert "geheim" not in repr(error) + str(error)
        error = error.__context__


def test_the_address_of_the_provider_is_shown_without_its_query() -> None:
    config = ProducerConfig.parse(
        bootstrap_servers="a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{OAUTH} required clientId="me" clientSecret="geheim" extension_key="geheim";',
        sasl_oauthbearer_token_endpoint_url="https://id.example/token?tenant=geheim#geheim",
    )
    assert "geheim" not in repr(config)
    found = config.sasl_credentials
    assert "geheim" not in repr(found)
    assert "https://id.example/token'" in repr(config)
    assert "https://id.example/token'" in repr(found)
    assert isinstance(found, OAuthCredentials)
    assert isinstance(found.source, ClientCredentials)
    assert found.source.url == "https://id.example/token?tenant=geheim#geheim"
    assert found.extensions == {"key": "geheim"}
    assert repr(ClientCredentials(url="https://u:geheim@h/x?geheim")).startswith("ClientCredentials(url='https://h/x',")
    assert "geheim" not in repr(ClientCredentials(url="https://[geheim"))


def test_a_password_keeps_its_blanks() -> None:
    assert resolve(sasl_username="a", sasl_password=" x ").password == Secret(" x ")


def test_dotted_names_and_properties() -> None:
    text = f"bootstrap.servers=a:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN}\n"
    config = AdminConfig.parse(text)
    assert config.sasl_credentials == PasswordCredentials("PLAIN", "alice", Secret("geheim"))
    again = copy.deepcopy(config)
    assert again.sasl_credentials == config.sasl_credentials
    assert "geheim" not in repr(config) + repr(vars(config)) + repr(config.sasl_credentials)
    assert config.replace(client_id="x").sasl_credentials == config.sasl_credentials


@pytest.mark.parametrize(
    ("mechanism", "settings", "reason"),
    [
        ("PLAIN", {}, "needs sasl.username and sasl.password"),
        ("PLAIN", {"sasl_username": "alice"}, "needs sasl.username and sasl.password"),
        ("PLAIN", {"sasl_password": "geheim"}, "needs sasl.username and sasl.password"),
        ("SCRAM-SHA-256", {"sasl_jaas_config": SCRAM.replace("username", "user")}, "has no option user"),
        ("PLAIN", {"sasl_jaas_config": SCRAM}, "ScramLoginModule, but sasl.mechanism = PLAIN needs PlainLoginModule"),
        ("SCRAM-SHA-256", {"sasl_jaas_config": PLAIN}, "needs ScramLoginModule"),
        ("PLAIN", {"sasl_jaas_config": PLAIN, "sasl_username": "alice"}, "say the same"),
        ("PLAIN", {"sasl_username": "a\0", "sasl_password": "geheim"}, "zero character"),
        ("PLAIN", {"sasl_username": "a", "sasl_password": "geheim\0"}, "zero character"),
        ("SCRAM-SHA-256", {"sasl_jaas_config": SCRAM.replace(";", " tokenauth=geheim;")}, "tokenauth is true or false"),
        ("SCRAM-SHA-256", {"sasl_jaas_config": SCRAM, "sasl_tokenauth": True}, 'it is tokenauth="true"'),
        ("PLAIN", {"sasl_username": "a", "sasl_password": "geheim", "sasl_tokenauth": True}, "PLAIN takes no delegat"),
        ("OAUTHBEARER", {"sasl_tokenauth": True}, "sasl.tokenauth is for SCRAM-SHA-256 and SCRAM-SHA-512, not for OA"),
        ("PLAIN", {"sasl_login_callback_handler_class": lambda: "x"}, "is for OAUTHBEARER"),
        ("CRAM-MD5", {}, "expected one of"),
        ("PLAIN", {"sasl_username": "a", "sasl_password": 7}, "sasl.password: expected text"),
    ],
)
def test_what_makes_no_sense(mechanism: str, settings: Any, reason: str) -> None:
    assert reason in refused(mechanism, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl_username": "alice", "sasl_password": "geheim"},
        {"sasl_jaas_config": PLAIN},
        {"sasl_mechanism": "PLAIN"},
        {"sasl_tokenauth": True},
        {"sasl_oauthbearer_token_endpoint_url": "https://id/geheim"},
    ],
)
def test_credentials_without_sasl_are_a_mistake(settings: Any) -> None:
    text = refused(**{"security_protocol": "PLAINTEXT", "sasl_mechanism": None, **settings})
    assert "SASL is not used with security.protocol = PLAINTEXT; set security.protocol to SASL_SSL" in text
    assert next(iter(settings)).replace("_", ".") in text


def test_without_sasl_there_are_no_credentials() -> None:
    assert ProducerConfig.parse(bootstrap_servers="a:1").sasl_credentials is None


def test_kerberos_is_named() -> None:
    for mechanism in ("GSSAPI", None):
        with pytest.raises(NotYetSupportedError, match="GSSAPI"):
            resolve(mechanism)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sasl.mechanisms", "Kafka's is sasl.mechanism"),
        ("oauth_cb", "sasl.login.callback.handler.class"),
        ("sasl_plain_username", "kafka-python and aiokafka; here it is sasl_username"),
        ("sasl_plain_password", "sasl_password"),
        ("sasl_oauth_token_provider", "sasl_login_callback_handler_class"),
        ("sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url"),
    ],
)
def test_names_of_other_clients(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.parse({"bootstrap.servers": "a:1", name: "geheim"})
    assert hint in str(caught.value)
    assert "geheim" not in str(caught.value)


# --- OAUTHBEARER


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 60.0),
        ({"sasl_login_read_timeout_ms": 5000}, 15.0),
        ({"sasl_login_connect_timeout_ms": 500, "sasl_login_read_timeout_ms": 2500}, 3.0),
    ],
)
def test_how_long_a_callback_may_take(settings: Any, seconds: float) -> None:
    found = resolve("OAUTHBEARER", sasl_login_callback_handler_class=lambda: "x", **settings)
    assert found.callback_timeout == seconds


def test_a_callback() -> None:
    def token() -> str:
        return "x"

    class Source:
        def __call__(self) -> str:
            return "y"

    found = resolve("OAUTHBEARER", sasl_login_callback_handler_class=token)
    assert isinstance(found, OAuthCredentials)
    assert found.source is token
    assert found.mechanism == "OAUTHBEARER"
    made = resolve("OAUTHBEARER", sasl_login_callback_handler_class=Source)
    assert made.source() == "y"
    for other in (lambda scope="all": scope, lambda *rest: "x", functools.partial(lambda x: x, "x")):
        assert resolve("OAUTHBEARER", sasl_login_callback_handler_class=other).source is other


def test_client_credentials() -> None:
    found = resolve(
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://id.example/token",
        sasl_oauthbearer_client_credentials_client_id="me",
        sasl_oauthbearer_client_credentials_client_secret="geheim",
        sasl_oauthbearer_scope="kafka",
        sasl_login_connect_timeout_ms=1500,
        sasl_login_retry_backoff_ms=50,
        sasl_login_refresh_buffer_seconds=7,
        sasl_oauthbearer_sub_claim_name="azp",
    )
    assert found.source == ClientCredentials(
        url="https://id.example/token",
        client_id="me",
        client_secret=Secret("geheim"),
        scope="kafka",
        connect_timeout=1.5,
        retry_backoff=0.05,
    )
    assert (found.buffer, found.sub_claim) == (7, "azp")
    assert "geheim" not in repr(found)


def test_client_credentials_in_jaas() -> None:
    """As files for Kafka up to 4.0 have it; what newer settings say counts more."""
    jaas = f"{OAUTH} required clientId=me clientSecret='geheim' scope=s extension_logicalCluster=lkc-1;"
    found = resolve(
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="http://id",
        sasl_login_callback_handler_class=f"{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler",
        sasl_jaas_config=jaas,
        sasl_oauthbearer_scope="other",
    )
    assert (found.source.client_id, found.source.client_secret, found.source.scope) == ("me", Secret("geheim"), "other")
    assert found.extensions == {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize("retriever", ["DefaultJwtRetriever", "FileJwtRetriever", None])
def test_a_token_in_a_file_needs_no_client(retriever: str | None) -> None:
    found = resolve(
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="file:///run/token",
        sasl_oauthbearer_jwt_retriever_class=retriever and f"{PACKAGE}.oauthbearer.{retriever}",
    )
    assert found.source.url == "file:///run/token"


@pytest.mark.parametrize(
    ("retriever", "url", "reason"),
    [
        ("ClientCredentialsJwtRetriever", "file:///x", "does not go with a file: address"),
        ("FileJwtRetriever", "https://x", "does not go with a https: address"),
        ("JwtBearerJwtRetriever", "https://x", "is not supported yet"),
    ],
)
def test_classes_that_fetch_tokens(retriever: str, url: str, reason: str) -> None:
    name = f"{PACKAGE}.oauthbearer.{retriever}"
    settings = {"sasl_oauthbearer_token_endpoint_url": url, "sasl_oauthbearer_jwt_retriever_class": name}
    assert reason in refused("OAUTHBEARER", **settings)


def test_unsecured_tokens() -> None:
    jaas = (
        f'{OAUTH} required unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="5" '
        'unsecuredLoginListClaim_scope=",a,b" unsecuredLoginLifetimeSeconds="60" unsecuredLoginExtension_x="y";'
    )
    found = resolve("OAUTHBEARER", sasl_jaas_config=jaas)
    assert found.source == UnsecuredToken(claims={"sub": "alice", "n": 5.0, "scope": ["a", "b"]}, lifetime=60.0)
    assert found.extensions == {"x": "y"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"sasl_login_callback_handler_class": f"{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"}, "endpoint"),
        ({"sasl_login_callback_handler_class": "com.example.Mine"}, "expected a function"),
        ({"sasl_login_callback_handler_class": object()}, "is not a function: expected a function without arguments"),
        ({"sasl_login_callback_handler_class": lambda config: "x"}, "def token() -> kclient.OAuthToken | str"),
        ({"sasl_login_callback_handler_class": NeedsMuch}, "a class is made without arguments"),
        ({"sasl_login_callback_handler_class": NeedsMuch(1)}, "cannot be called without arguments"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://x/?a=b&client_secret=geheim@"}, "client_secret does not bel"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://[geheim@"}, "is not a valid address"),
        ({"sasl_jaas_config": f"{UNSECURED} extension_a1=b;"}, "a SASL extension has a name that cannot be sent"),
        ({"sasl_jaas_config": f"{UNSECURED} extension_a='geheim@ü';"}, "extension a has a value that cannot be sent"),
        ({"sasl_login_callback_handler_class": lambda: "x", "sasl_jaas_config": f"{OAUTH} required scope=s;"}, "used"),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://x"}, "expected an https: address"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://x"}, "client.id"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://u:geheim@x"}, "user and password do not belong"),
        ({"sasl_username": "alice"}, "for PLAIN and SCRAM"),
        ({"sasl_jaas_config": f"{OAUTH} required unsecuredLoginStringClaim_x=y;"}, "unsecuredLoginStringClaim_sub"),
        ({"sasl_jaas_config": f"{OAUTH} required unsecuredLoginNumberClaim_x=geheim;"}, "take numbers"),
        ({"sasl_jaas_config": f"{OAUTH} required clientID=a geheim=x;"}, "has no option clientID; it has clientId,"),
        ({"sasl_jaas_config": f"{OAUTH} required scope=a geheim=x;"}, "no option like the one in place 2 (not shown"),
        ({"sasl_jaas_config": f"{OAUTH} required useKeyTab=true;"}, "has no option useKeyTab"),
        ({"sasl_jaas_config": "geheim required a=b;"}, "has another module, but"),
        ({"sasl_jaas_config": f"{OAUTH} required ssl.truststore.location=x;"}, "has no option ssl.truststore.location"),
        ({"sasl_jaas_config": PLAIN}, "needs OAuthBearerLoginModule"),
        ({"sasl_oauthbearer_assertion_file": "x"}, "sasl.oauthbearer.assertion.file"),
    ],
)
def test_oauth_that_makes_no_sense(settings: Any, reason: str) -> None:
    with pytest.raises(KafkaError) as caught:
        resolve("OAUTHBEARER", **settings)
    assert reason in str(caught.value)
    assert "geheim" not in str(caught.value)


# --- the guide


def guide(language: str) -> list[str]:
    """The blocks of the guide's page that are about SASL."""
    blocks = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    return [block for block in blocks if "sasl" in block]


def test_the_programs_of_the_guide_make_clients() -> None:
    blocks = guide("python")
    assert len(blocks) == 3
    token = DelegationToken("id", Secret("aG1hYw=="), "User:alice", "User:alice", (), 0, 0, 0)
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), {"kclient": kclient, "time": time, "token": token})


def test_the_properties_of_the_guide_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = guide("properties")
    assert len(blocks) == 3
    monkeypatch.setenv("KAFKA_USER", "alice")
    (tmp_path / "kafka.properties").write_text("password=secret")
    for block in blocks:
        text = block.replace("/run/secrets", str(tmp_path))
        if "security.protocol" not in text:
            text += "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        assert AdminConfig.parse(f"bootstrap.servers=a:1\n{text}").sasl_credentials is not None
