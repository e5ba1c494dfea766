"""The list of the causes, docs/causes.md: `make causes` writes it from the codes and meanings in common/causes.py.

tests/unit/common/test_causes.py fails where the page is older than the code.
"""

from __future__ import annotations

from pathlib import Path

from cutline.common.causes import MEANINGS, QUARANTINES, Code

PAGE = Path(__file__).resolve().parents[1] / "docs" / "causes.md"
HEAD = """# Causes

Whatever stops a table, an epoch or a pipeline has a cause: a **code**, a **sentence** that says what happened to what,
and a **remedy**. Records, the status, the API (`code`, `cause`, `remedy`), metrics and alerts carry it. Programs tell
causes apart by the code, which keeps its meaning over versions; the sentence is for people and may change. A code that
is not listed here is of a newer version.

This page is made from `common/causes.py` by `make causes`. [Messages](operations/messages.md) lists the sentences.
"""


def render() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(_section(code) for code in Code)])


def _section(code: Code) -> str:
    meaning = MEANINGS[code]
    counted = "\n\nMetrics count tables that are quarantined for it." if code in QUARANTINES else ""
    return f"## {code}\n\n{meaning.means}\n\n**What to do:** {meaning.remedy}{counted}\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
