"""What users import: `from cutline import ...`. Installed as the package `cutline` itself (setup.py says how)."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """Return `__version__`, looked up when it is asked for: that takes longer than many a service's other imports."""
    if name == "__version__":
        from importlib.metadata import version

        return version("cutline")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
