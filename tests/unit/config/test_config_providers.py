"""`config.providers`: variables in settings come from the environment, from files, or from a provider of one's own."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kclient import sync
from kclient.cli.app import run
from kclient.config import AdminConfig, ConsumerConfig, ProducerConfig
from kclient.errors import ConfigError
from kclient.testing import memory_broker

PASSWORD = "s3cret"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KCLIENT_TEST_PASSWORD", PASSWORD)
    (tmp_path / "kafka.properties").write_text("password=s3cret\nname=alice\n")
    (tmp_path / "token").write_text(PASSWORD)
    return tmp_path


def config(secrets: Path, variable: str, providers: str = "env, file,directory", **more: Any) -> ProducerConfig:
    return ProducerConfig.parse(
        {
            "bootstrap.servers": "localhost:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": variable.replace("DIR", str(secrets)),
            "config.providers": providers,
            **more,
        }
    )


@pytest.mark.parametrize(
    "variable", ["${env:KCLIENT_TEST_PASSWORD}", "${file:DIR/kafka.properties:password}", "${directory:DIR:token}"]
)
def test_a_variable_stands_for_its_value(secrets: Path, variable: str) -> None:
    found = config(secrets, variable)
    assert found.sasl_password is not None
    assert found.sasl_password.reveal() == PASSWORD
    assert PASSWORD not in repr(found)
    assert found.replace(linger_ms=3).sasl_password == found.sasl_password


def test_several_stand_in_one_text(secrets: Path) -> None:
    found = config(
        secrets,
        "${env:KCLIENT_TEST_PASSWORD}-$1-${file:DIR/kafka.properties:name}",
        client_id=f"a-${{file:{secrets}/kafka.properties:name}}-b",
    )
    assert found.sasl_password is not None
    assert found.sasl_password.reveal() == "s3cret-$1-alice"
    assert found.client_id == "a-alice-b"


def test_javas_classes_and_parameters(secrets: Path) -> None:
    package = "org.apache.kafka.common.config.provider"
    found = config(
        secrets, "${e:KCLIENT_TEST_PASSWORD}", "e,f,d",
        **{
            "config.providers.e.class": f"{package}.EnvVarConfigProvider",
            "config.providers.e.param.allowlist.pattern": "KCLIENT_TEST_.*",
            "config.providers.f.class": f"{package}.FileConfigProvider",
            "config.providers.f.param.allowed.paths": f"/nowhere,{secrets}",
            "config.providers.d.class": f"{package}.DirectoryConfigProvider",
            "client.id": f"${{f:{secrets}/kafka.properties:name}}",
        },
    )  # fmt: skip
    assert found.sasl_password is not None
    assert (found.sasl_password.reveal(), found.client_id) == (PASSWORD, "alice")


def test_in_a_properties_file_and_as_arguments(secrets: Path) -> None:
    path = secrets / "client.properties"
    path.write_text("bootstrap.servers=localhost:1\nclient.id=${env:KCLIENT_TEST_PASSWORD}\nconfig.providers=env\n")
    assert AdminConfig.parse(path).client_id == PASSWORD
    found = ConsumerConfig.parse(
        bootstrap_servers="localhost:1", group_id="${env:KCLIENT_TEST_PASSWORD}", config_providers=["env"],
        config_providers_env_class="env",
    )  # fmt: skip
    assert found.group_id == PASSWORD


def test_without_providers_nothing_is_a_variable() -> None:
    found = AdminConfig.parse(bootstrap_servers="localhost:1", client_id="${env:HOME}")
    assert found.client_id == "${env:HOME}"


class Vault:
    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self.parameters = parameters or {}

    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        return {key: f"{self.parameters.get('url', '')}{path}/{key}" for key in keys if key != "missing"}


@pytest.mark.parametrize("vault", [Vault, Vault({"url": ""})])
def test_a_provider_of_ones_own(vault: Any) -> None:
    found = AdminConfig.parse(
        {"bootstrap.servers": "localhost:1", "client.id": "${vault:kv:a:b}", "config.providers": "vault",
         "config.providers.vault.class": vault}
    )  # fmt: skip
    assert found.client_id == "kv/a:b"


def test_its_parameters() -> None:
    found = AdminConfig.parse(
        {"bootstrap.servers": "localhost:1", "client.id": "${vault:kv:a}", "config.providers": "vault",
         "config.providers.vault.class": Vault, "config.providers.vault.param.url": "v:"}
    )  # fmt: skip
    assert found.client_id == "v:kv/a"


@pytest.mark.parametrize(
    ("variable", "more", "told"),
    [
        ("${env:KCLIENT_NOT_THERE}", {}, r"sasl.password: the variable \$\{env:KCLIENT_NOT_THERE\} is not there"),
        ("${env:a:KCLIENT_TEST_PASSWORD}", {}, "have no path"),
        ("${file:DIR/none.properties:password}", {}, "cannot be read: No such file"),
        ("${file:DIR/kafka.properties:other}", {}, "is not there"),
        ("${file:password}", {}, "the path is missing"),
        ("${directory:DIR:../token}", {}, "is not the name of a file"),
        ("${vault:a:b}", {}, "config.providers does not name: it names env, file, directory"),
        ("x", {"config.providers.vault.class": "env"}, "is of a provider that config.providers does not name"),
        ("x", {"config.providers.env.class": "com.example.Vault"}, "or one of env, file, directory"),
        ("x", {"config.providers.env.class": 5}, "which has a method get"),
        ("x", {"config.providers.env.param.pattern": "x"}, "config.providers.env.param.pattern is not a parameter"),
        ("x", {"config.providers.env.param.allowlist.pattern": "("}, "is not a regular expression"),
        ("${env:KCLIENT_TEST_PASSWORD}", {"config.providers.env.param.allowlist.pattern": "OTHER_.*"}, "not there"),
        ("${file:DIR/kafka.properties:name}", {"config.providers.file.param.allowed.paths": "/nowhere"}, "not below"),
        ("x", {"config.providers": 5}, "expected a list of names"),
    ],
)
def test_what_cannot_be_is_told(secrets: Path, variable: str, more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config(secrets, variable, **more)


def test_links_lead_out_of_no_allowed_folder(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "token"
    outside.write_text("x")
    (secrets / "link").symlink_to(outside)
    with pytest.raises(ConfigError, match="not below"):
        config(secrets, "${directory:DIR:link}", **{"config.providers.directory.param.allowed.paths": str(secrets)})


def test_what_a_variable_stands_for_is_in_no_error(secrets: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config(secrets, "x", **{"linger.ms": "${env:KCLIENT_TEST_PASSWORD}"})
    assert PASSWORD not in str(caught.value)
    assert "${env:KCLIENT_TEST_PASSWORD}" in str(caught.value)


def test_at_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with memory_broker() as address:
        with sync.Admin(bootstrap_servers=address) as admin:
            admin.create_topic("t")
        monkeypatch.setenv("KCLIENT_TEST_ID", "me")
        words = ["topics", "list", "--bootstrap", address, "-c", "config.providers=env"]
        assert run([*words, "-c", "client.id=${env:KCLIENT_TEST_ID}"]) == 0
        assert capsys.readouterr().out == "t\n"
        assert run([*words, "-c", "client.id=${env:KCLIENT_TEST_NONE}"]) == 2
        assert "is not there" in capsys.readouterr().err


def test_a_list_of_texts_has_variables_too(secrets: Path) -> None:
    servers = [f"${{file:{secrets}/kafka.properties:name}}:9092", "other:9092"]
    found = config(secrets, "x", **{"bootstrap.servers": servers})
    assert found.bootstrap_servers == ("alice:9092", "other:9092")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ssl.truststore.location", "${env:KCLIENT_TEST_PASSWORD}"),
        ("ssl.truststore.location", "/nowhere/${env:KCLIENT_TEST_PASSWORD}.pem"),
        ("ssl.truststore.location", "/nowhere/a${env:KCLIENT_TEST_PASSWORD}b.pem"),
        ("ssl.enabled.protocols", "TLSv1.3,${env:KCLIENT_TEST_PASSWORD}"),
        ("ssl.enabled.protocols", "TLSv1.3,x${env:KCLIENT_TEST_PASSWORD}y"),
        ("ssl.cipher.suites", ["${env:KCLIENT_TEST_PASSWORD}"]),
    ],
)
def test_no_error_shows_what_a_variable_stands_for(secrets: Path, setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        config(secrets, "x", **{setting: value, "security.protocol": "SASL_SSL"})
    text = "".join(traceback.format_exception(caught.value, chain=True))
    assert PASSWORD not in text
    assert "${env:KCLIENT_TEST_PASSWORD}" in str(caught.value)


@pytest.mark.parametrize(
    "variable",
    ["${file:a\0b:key}", f"${{file:{'x' * 5000}:key}}", f"${{directory:DIR:{'x' * 5000}}}", "${file:DIR/loop:key}"],
    ids=["zero byte", "long path", "long name", "circle"],
)
def test_paths_that_no_file_has(secrets: Path, variable: str) -> None:
    (secrets / "loop").symlink_to(secrets / "loop")
    with pytest.raises(ConfigError, match=r"^sasl\.password: the variable "):
        config(secrets, variable)


class Raising:
    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        raise RuntimeError(PASSWORD)


class Empty:
    def get(self, path: str, keys: Iterable[str]) -> Any:
        return None


class Unmade:
    def __init__(self) -> None:
        raise OSError(PASSWORD)

    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        return {}


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (Raising, r"^sasl\.password: the variable \$\{own:x\} cannot be looked up: RuntimeError was raised"),
        (Empty, r"^sasl\.password: the variable \$\{own:x\} cannot be looked up: its provider gave no mapping"),
        (Unmade, r"^config\.providers\.own\.class: Unmade could not be made: OSError was raised"),
    ],
)
def test_a_provider_of_ones_own_that_fails(secrets: Path, provider: type, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        config(secrets, "${own:x}", "own", **{"config.providers.own.class": provider})
    assert PASSWORD not in str(caught.value)


def test_names_of_providers_and_parameters_may_have_underscores(secrets: Path) -> None:
    given: list[Any] = []

    class Asked:
        def __init__(self, parameters: Mapping[str, str]) -> None:
            given.append(dict(parameters))

        def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
            return dict.fromkeys(keys, PASSWORD)

    more = {"config.providers.my_own.class": Asked, "config.providers.my_own.param.vault_url": "x"}
    found = config(secrets, "${my_own:x}", "my_own", **more)
    assert found.sasl_password is not None
    assert found.sasl_password.reveal() == PASSWORD
    assert given == [{"vault_url": "x"}]
