"""`kclient info`: what is installed, and what the cluster is."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import kclient
from kclient import records
from kclient.cli import output

_EXTRAS = (
    ("arrow", "pyarrow"),
    ("spark", "pyspark"),
    ("gateway", "SQLAlchemy"),
    ("cli", "typer"),
)


def info(settings: dict[str, object] | None) -> int:
    """Print versions, and the cluster if one was named."""
    rows: list[tuple[object, object]] = [
        ("kclient", kclient.__version__),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("records", records.IMPLEMENTATION),
    ]
    rows += [(f"extra {extra}", _version(package)) for extra, package in _EXTRAS]
    if settings is not None:
        from kclient.sync import Admin

        with Admin(settings) as admin:
            cluster = admin.describe_cluster()
            topics = len(admin.list_topics())
        rows.append(("cluster", cluster.cluster_id))
        rows += [("broker", str(node)) for node in cluster.nodes]
        rows.append(("topics", topics))
    output.table(["what", "which"], rows)
    return 0


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"
