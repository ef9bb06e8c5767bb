"""Builds the optional compiled fast path; everything else is declared in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

try:
    from Cython.Build import cythonize
except ImportError:  # without Cython the interpreted twin serves
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                "kclient.records._compiled",
                ["kclient/records/_compiled.pyx"],
                depends=[str(part) for part in sorted(Path("kclient/records/_cython").glob("*.pxi"))],
                extra_compile_args=["-O3"],
            )
        ],
        compiler_directives={"language_level": 3},
    )
    for extension in extensions:
        # Where it cannot be compiled the interpreted twin serves. Set here, as cythonize forgets it.
        extension.optional = True


class WheelOfWhatWasBuilt(bdist_wheel):
    """A wheel for this platform if the fast path was compiled, else one for every platform."""

    def run(self) -> None:
        if self.distribution.ext_modules:
            self.run_command("build_ext")
            built = self.get_finalized_command("build_ext").get_outputs()
            if not any(Path(name).exists() for name in built):
                self.root_is_pure = True
                self.distribution.ext_modules = []  # or all would be installed as of this platform
        super().run()


setup(ext_modules=extensions, cmdclass={"bdist_wheel": WheelOfWhatWasBuilt})
