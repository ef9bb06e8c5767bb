"""Runs pyright's `--verifytypes` on the public surface and fails when anything public lacks a complete type."""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--verifytypes", "kclient", "--ignoreexternal", "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
        # pyright asks the first `python` on PATH where packages are
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    try:
        report = json.loads(result.stdout)
    except ValueError:
        print(result.stdout, result.stderr, file=sys.stderr)
        return 1
    for problem in report["generalDiagnostics"]:
        if not report["typeCompleteness"]["symbols"]:
            print(problem["message"], file=sys.stderr)
            return 1
    completeness = report["typeCompleteness"]
    incomplete = [
        symbol
        for symbol in completeness["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"] and not _private(symbol["name"])
    ]
    # an exported name may be incomplete because of what is private in its module
    private = [s for s in completeness["symbols"] if not s["isTypeKnown"] and _private(s["name"]) and s["diagnostics"]]
    for symbol in incomplete + (private if incomplete else []):
        print(symbol["name"])
        for diagnostic in symbol["diagnostics"]:
            print("   ", diagnostic["message"].replace("\n", "\n    "))
    known = sum(1 for s in completeness["symbols"] if s["isExported"]) - len(incomplete)
    print(f"verifytypes: {known} exported symbols known, {len(incomplete)} incomplete")
    return 1 if incomplete else 0


def _private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


if __name__ == "__main__":
    sys.exit(main())
