"""What users import: `from cutline import ...`. Installed as the package `cutline` itself (setup.py says how)."""

from importlib.metadata import version

__version__ = version("cutline")
