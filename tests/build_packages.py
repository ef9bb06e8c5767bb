"""Builds what is uploaded, and tries it: `make dist`, or `python -m tests.build_packages [FOLDER]`.

The source distribution, a wheel with the compiled fast path and one without, which any platform takes. Where
auditwheel and patchelf are there the compiled wheel becomes a manylinux one; a plain Linux wheel cannot be uploaded.
Each of them is checked by twine and installed into an environment of its own, where a program runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}

TRIAL = """
import sys
from kclient import records
from kclient.sync import Consumer, Producer

assert records.IMPLEMENTATION == sys.argv[1], records.IMPLEMENTATION
for address in ("memory:trial", "embedded:data"):
    with Producer(bootstrap_servers=address, compression_type="zstd") as producer:
        producer.send("t", b"hello")
    with Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(timeout=30)] == [b"hello"]
"""


class PackageError(Exception):
    """What was built is not what is to be uploaded."""


def main(folder: Path) -> None:
    """Builds into the folder, which is emptied before; raises if anything is wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Wheels are built of the source distribution, so that it is known to be complete.
    build("--outdir", str(folder), str(ROOT))
    (source,) = folder.glob("*.tar.gz")
    build_pure(source, folder)
    repair(folder)
    (compiled,) = (path for path in folder.glob("*.whl") if "none-any" not in path.name)
    (pure,) = folder.glob("*-py3-none-any.whl")
    check_content(compiled, compiled=True)
    check_content(pure, compiled=False)
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(folder.iterdir()))])
    try_out(compiled, "compiled")
    try_out(pure, "interpreted")
    try_out(source, "compiled")
    try_out(source, "interpreted", **NO_COMPILER)
    for path in sorted(folder.iterdir()):
        print(f"{path.name}  {path.stat().st_size:,} bytes")


def build(*arguments: str, **environment: str) -> None:
    run([sys.executable, "-m", "build", "--quiet", *arguments], **environment)


def build_pure(source: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as unpacked:
        build("--wheel", "--outdir", str(folder), str(unpack(source, unpacked)), **NO_COMPILER)


def unpack(source: Path, folder: str) -> Path:
    shutil.unpack_archive(source, folder, filter="data")
    (root,) = Path(folder).iterdir()
    return root


def repair(folder: Path) -> None:
    """Makes the Linux wheel one that runs on every Linux that is old enough."""
    wheels = list(folder.glob("*-linux_*.whl"))
    if not wheels:
        return
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    missing = [name for name in ("auditwheel", "patchelf") if shutil.which(name, path=beside) is None]
    if missing:
        print(f"{wheels[0].name} cannot be uploaded: it stays a plain Linux wheel without {' and '.join(missing)}")
        return
    for wheel in wheels:
        command = [sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", str(folder), str(wheel)]
        run(command, PATH=beside)
        wheel.unlink()


def check_content(wheel: Path, *, compiled: bool) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    has = any(name.endswith((".so", ".pyd")) for name in names)
    if has != compiled:
        raise PackageError(f"{wheel.name} {'lacks' if compiled else 'has'} compiled code")
    for name in ("kclient/py.typed", "kclient/records/_compiled.pyi", "pyspark_kclient.py"):
        if name not in names:
            raise PackageError(f"{wheel.name} lacks {name}")
    strays = [name for name in names if name.split("/")[0] not in ("kclient", "pyspark_kclient.py")]
    strays = [name for name in strays if ".dist-info/" not in name]
    if strays:
        raise PackageError(f"{wheel.name} would install {strays[0]}")


def try_out(package: Path, implementation: str, **environment: str) -> None:
    """Installs it into a new environment, and runs a program and the command line there."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as unpacked:
        here = Path(folder)
        run([sys.executable, "-m", "venv", str(here / "venv")])
        python = str(here / "venv/bin/python")
        # pip keeps what it built of a file, and would not build it again
        place = package.resolve() if package.suffix == ".whl" else unpack(package, unpacked)
        wanted = f"htp-kclient[cli,gateway] @ {place.as_uri()}"
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted], **environment)
        run([python, "-W", "error", "-c", TRIAL, implementation], cwd=here)
        shown = run([str(here / "venv/bin/kclient"), "topics", "list", "--bootstrap", "embedded:data"], cwd=here)
        if shown != "t\n":
            raise PackageError(f"installed from {package.name}, kclient lists the topics {shown!r}")
    print(f"{package.name}: installed and tried, {implementation}")


def run(command: list[str], *, cwd: Path | None = None, **environment: str) -> str:
    # without PYTHONPATH: pip takes what it finds there for installed
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        raise PackageError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
