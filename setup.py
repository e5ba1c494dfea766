"""Compiles the hot loops and names the packages; all other metadata stands in pyproject.toml.

Site-packages get one package, `cutline`, so that Cutline can't clash with modules of its users: the folder `common` is
`cutline.common`, and so on, in a checkout (an editable install) as in a wheel. `cutline` itself is `services/client`.

The compiled sources are plain Python that Cython takes too ("pure Python mode"), so each extension is optional: without
a C compiler the same file is interpreted, slower, with the same results, and the build says so.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

TOP = ("common", "services", "spark_writer")
ITSELF = "services.client"
COMPILED = (
    "services/sources/mysql/decode/arena.py",
    "services/sources/mysql/decode/decimals.py",
    "services/sources/mysql/decode/json_text.py",
    "services/sources/mysql/decode/row_plan.py",
    "services/sources/mysql/decode/values.py",
    "services/sources/mysql/decode/result.py",
    "services/sources/mysql/decode/row_event.py",
    "services/sources/mysql/binlog/scanner.py",
)
"""Each takes some of those above by C, so all are compiled or none is."""


class SpokenBuild(build_ext):
    """If an extension can't be built, names it, says what follows, and leaves out all extensions."""

    def build_extensions(self) -> None:
        """Build the extensions on all cores; a failure is not an error, because the source files can be interpreted."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            building = [(extension, pool.submit(self.build_extension, extension)) for extension in self.extensions]
        for extension, built in building:
            if (error := built.exception()) is not None:
                print(
                    f"cutline: {extension.name} can't be compiled ({error}); all decoders are interpreted",
                    file=sys.stderr,
                )
                self.extensions = []  # extensions left here are copied into the source folder
                break


def extensions() -> list[Extension]:
    """The extensions whose source exists, translated to C; none without Cython."""
    sources = [source for source in COMPILED if os.path.exists(source)]
    try:
        from Cython.Build import cythonize
    except ImportError:
        print(f"cutline: no Cython, so {', '.join(sources) or 'nothing'} is compiled", file=sys.stderr)
        return []
    modules = [
        Extension(
            f"cutline.{source.removesuffix('.py').replace('/', '.')}",
            [source],
            # The last one counts, so a level that the user of the build sets stays.
            extra_compile_args=[] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"],
            optional=True,
        )
        for source in sources
    ]
    # cythonize([]) is refused by some versions
    if not modules:
        return []
    built: list[Extension] = cythonize(
        modules, build_dir="build/cython", include_path=[names()], compiler_directives={"language_level": "3"}
    )
    return built


def names() -> str:
    """A folder in which the sources have the paths of their names, for what knows no import hook: Cython and mypy."""
    folder = os.path.join("build", "names")
    os.makedirs(folder, exist_ok=True)
    if not os.path.lexists(link := os.path.join(folder, "cutline")):
        os.symlink(os.path.join("..", ".."), link)
    return folder


def packages() -> list[str]:
    """Every folder with Python in it, by the name it is imported by."""
    named = [pattern for top in TOP for pattern in (top, f"{top}.*")]
    found = find_namespace_packages(include=named, exclude=["*.static", "*.static.*"])  # the dashboard: data
    return ["cutline", *(f"cutline.{name}" for name in found if name != ITSELF)]


setup(
    packages=packages(),
    package_dir={"cutline": ITSELF.replace(".", "/"), **{f"cutline.{top}": top for top in TOP}},
    package_data={
        "cutline.services.control": [f"static/{kind}" for kind in ("*", "*/*", "*/*/*")],
        "cutline.services.sources.mysql.binlog": ["*.pxd"],
        "cutline.services.sources.mysql.decode": ["*.pxd"],
        "cutline.spark_writer": ["jars.toml", "log4j2.properties", "LocalFiles.java"],
        "cutline.spark_writer.sinks.iceberg": ["Keyed.java", "Queries.java", "TableCalls.java"],
        "cutline.spark_writer.transform": ["Expressions.java"],
    },
    ext_modules=extensions(),
    cmdclass={"build_ext": SpokenBuild},
)
