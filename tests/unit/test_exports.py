"""The public face: every name is there, and importing one costs no optional package."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PUBLIC = [
    "kclient",
    "kclient.admin",
    "kclient.config",
    "kclient.consumer",
    "kclient.gateway",
    "kclient.htp",
    "kclient.processing",
    "kclient.producer",
    "kclient.schema_registry",
    "kclient.serialization",
    "kclient.spark",
    "kclient.sync",
    "kclient.testing",
    "kclient.types",
]
HEAVY = [
    "pyarrow",
    "sqlalchemy",
    "pyspark",
    "typer",
    "rich",
    "pandas",
    "httpx",
    "numpy",
    "prometheus_client",
    "opentelemetry",
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("module_name", PUBLIC)
def test_every_exported_name_is_there(module_name: str) -> None:
    module = importlib.import_module(module_name)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None, name


@pytest.mark.parametrize("module_name", PUBLIC)
def test_type_checkers_see_the_same_names(module_name: str) -> None:
    """The imports under TYPE_CHECKING are what the checkers read, `__all__` is what runs."""
    module = importlib.import_module(module_name)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    seen = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kclient")
        for alias in node.names
    }
    defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    defined |= {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    defined |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert set(module.__all__) <= seen | defined


def loaded_after(code: str) -> set[str]:
    """The modules in `sys.modules` after running the code in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(result.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import kclient",
        "from kclient import Producer, Consumer, ShareConsumer, Admin",
        "import kclient.sync; kclient.sync.Producer; kclient.sync.Consumer; kclient.sync.Admin",
        "import kclient.sync; kclient.sync.ShareConsumer",
        "from kclient import Gateway",
        "import kclient.inprocess",
        "import kclient.processing",
        "import kclient.testing.plugin",
    ],
)
def test_optional_packages_are_imported_on_use_only(code: str) -> None:
    assert loaded_after(code).isdisjoint(HEAVY)


def test_importing_the_package_imports_neither_client_nor_gateway() -> None:
    rooms = {name.split(".")[1] for name in loaded_after("import kclient") if name.startswith("kclient.")}
    assert rooms.isdisjoint({"producer", "consumer", "admin", "gateway", "htp", "protocol", "records", "sync"})


@pytest.mark.slow
def test_the_gateway_starts_without_the_settings_of_clients() -> None:
    """It would take a twentieth of a second longer to listen."""
    loaded = loaded_after("from kclient import Gateway")
    assert "kclient.config.setting" in loaded
    assert loaded.isdisjoint(f"kclient.config.{name}" for name in ("admin", "consumer", "producer", "security"))


def test_what_needs_spark_names_the_extra_where_it_is_missing() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from kclient.errors import MissingExtraError\n"
        "try:\n"
        "    from kclient.spark import register\n"
        "except MissingExtraError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "kclient.spark.register needs the package pyspark: pip install 'htp-kclient[spark]'\n"


def test_a_python_that_lacks_what_kclient_needs_is_named_and_how_to_choose_another() -> None:
    """Spark's workers find the package on the driver's path, and run what `python3` is."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import kclient.spark"],  # without the packages that are installed
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        f"kclient.errors._local.MissingExtraError: kclient.spark in {sys.executable} (PYSPARK_PYTHON or "
        "spark.pyspark.python names another Python for Spark's workers) needs the package anyio: "
        "pip install 'htp-kclient[spark]'"
    )
