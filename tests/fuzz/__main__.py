"""Fuzzes under atheris, which mutates inputs towards code that was not reached yet.

    python -m tests.fuzz [--seconds N] [NAME ...]

runs the targets (all, or those named) one after the other, N seconds each. What it found out stays in `.fuzz/NAME`:
`corpus` for the next run, and inputs that failed as `crash-*`. One that fails becomes a test of its own.
The compiled reader of records is called too, but only the interpreted one tells atheris what was reached.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGETS = ("messages", "frames", "records", "properties", "patterns")
HOME = Path(".fuzz")
MEMORY_MB = 1024
SLOW_S = 60  # atheris takes its time to instrument a large decoder when it is first used


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or TARGETS
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if options.here:
        return fuzz(names[0], options.seconds)
    # a process each: atheris ends the process that it runs in
    command = [sys.executable, "-m", "tests.fuzz", "--here", "--seconds", str(options.seconds)]
    return max(subprocess.run([*command, name], check=False).returncode for name in names)


def fuzz(name: str, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["kclient"]):
        target = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    _instrument_decoders()
    corpus = HOME / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={seconds}",
        f"-artifact_prefix={HOME / name}/",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-timeout={SLOW_S}",
        "-max_len=4096",
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, target.check)
    atheris.Fuzz()
    return 0


def _instrument_decoders() -> None:
    """Decoders are written while the program runs, where atheris does not see them."""
    import atheris

    from kclient.protocol import message

    compile_decoder = vars(message)["compile_decoder"]

    def instrumented(cls: type[Any], version: int) -> Any:
        return atheris.instrument_func(compile_decoder(cls, version))

    vars(message)["compile_decoder"] = instrumented


if __name__ == "__main__":
    sys.exit(main())
