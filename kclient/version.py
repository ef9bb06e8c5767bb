"""The version of kclient, which clients tell brokers; `pyproject.toml` has the same."""

__version__ = "0.1.0"
