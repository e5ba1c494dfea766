"""Compiles the hot loops; all other metadata stands in pyproject.toml.

The sources are plain Python that Cython takes too ("pure Python mode"), so each extension is optional: without a C
compiler the same file is interpreted, slower, with the same results, and the build says so.
"""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = ("services/reader/rows.py", "services/reader/binlog_events.py")  # the second takes the first by C


class SpokenBuild(build_ext):
    """An extension that can't be built is named, with what follows from it, and left out with those behind it."""

    def build_extensions(self) -> None:
        """Build each extension; a failure is no error, because the interpreted file serves too."""
        built = []
        for extension in self.extensions:
            try:
                self.build_extension(extension)
                built.append(extension)
            except Exception as error:
                print(f"cutline: {extension.name} is not compiled, but interpreted: {error}", file=sys.stderr)
                break
        self.extensions = built  # what is left out here is not copied into the source folder


def extensions() -> list[Extension]:
    """The extensions whose source exists, translated to C; none without Cython."""
    sources = [source for source in COMPILED if os.path.exists(source)]
    try:
        from Cython.Build import cythonize
    except ImportError:
        print(f"cutline: no Cython, so {', '.join(sources) or 'nothing'} is compiled", file=sys.stderr)
        return []
    modules = [
        Extension(source.removesuffix(".py").replace("/", "."), [source], extra_compile_args=["-O3"], optional=True)
        for source in sources
    ]
    # cythonize([]) is refused by some versions
    if not modules:
        return []
    built: list[Extension] = cythonize(modules, build_dir="build/cython", compiler_directives={"language_level": "3"})
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": SpokenBuild})
