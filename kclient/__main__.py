"""`python -m kclient`: the command line."""

from __future__ import annotations

from kclient.cli import main

if __name__ == "__main__":
    main()
