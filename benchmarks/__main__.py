"""Runs every benchmark, or those named: `python -m benchmarks [NAME …]`."""

import importlib
import sys
from pathlib import Path

HELPERS = {"__init__", "__main__", "harness", "raw_client"}


def main(names: list[str]) -> None:
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in names or known:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
