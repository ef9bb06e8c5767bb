"""Builds the optional compiled fast path; everything else is declared in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

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

setup(ext_modules=extensions)
