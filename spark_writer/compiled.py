"""Java classes of ours, for what would take Python too many calls to Spark's JVM, or can't be reached from here.

Janino compiles them in the JVM when they are first needed, in under a second; Spark has it for its own generated code.
So nothing is built or shipped but their sources: Java 8 without lambdas, and elements of collections need casts.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark import SparkContext

_BESIDE = "org.apache.iceberg.Table"
"""A class of the jars that ours use."""
_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""By the gateway to their JVM, an object of each class."""
_compiling = threading.Lock()


def one_of(context: SparkContext, source: Path, name: str) -> Any:
    """Return the one object of the class `name` from the file `source`, made by its constructor without arguments."""
    gateway, java = cast(Any, context)._gateway, cast(Any, context)._jvm
    with _compiling:
        known = _made.setdefault(gateway, {})
        if name not in known:
            compiler = java.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(java.java.lang.Class.forName(_BESIDE).getClassLoader())
            compiler.cook(source.read_text(encoding="utf-8"))
            found = compiler.getClassLoader().loadClass(f"cutline.{name}")
            constructor = found.getConstructor(gateway.new_array(java.java.lang.Class, 0))
            known[name] = constructor.newInstance(gateway.new_array(java.java.lang.Object, 0))
        return known[name]
