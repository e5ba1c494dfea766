"""How a terminal shows the conditions that a person must act on: most severe first, with since, cause and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from cutline.common.causes import Code
from cutline.common.store.condition_log import Acknowledgement
from cutline.services.client.rest import models
from cutline.services.control.standing import Held
from cutline.services.run.figures import dated, duration, when
from cutline.services.run.layout import Items, wrapped

NAMED_TABLES = 20
SEVERITIES = ("critical", "warning", "info")
_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCondition:
    """A condition as it is shown. `retry` is the command that a quarantined table needs once its cause is gone.
    `acknowledged` says by whom and why, None: nobody did; `id` is for that."""

    severity: str
    summary: str
    since: float | None = None
    cause: str | None = None
    remedy: str | None = None
    retry: str | None = None
    tables: Sequence[str] = ()
    tables_total: int = 0
    acknowledged: str | None = None
    id: str | None = None

    @property
    def is_due(self) -> bool:
        """Whether somebody must act on it, and nobody has acknowledged it."""
        return self.acknowledged is None and self.severity in ("critical", "warning")


def judged(found: Iterable[Held]) -> list[ShownCondition]:
    """Conditions that were judged here, where no control service is asked."""
    return [
        ShownCondition(
            severity=each.condition.severity,
            summary=each.summary,
            since=each.since,
            cause=None if each.cause is None else each.cause.sentence,
            remedy=each.remedy,
            retry=_retry(each.condition.name, each.pipeline, each.cause.code if each.cause else None, each.tables),
            tables=each.tables[:NAMED_TABLES],
            tables_total=len(each.tables),
            acknowledged=None if known is None else _acknowledged(known),
            id=each.id,
        )
        for each, known in ((held.finding, held.acknowledged) for held in found)
    ]


def answered(found: Iterable[models.Condition]) -> list[ShownCondition]:
    """Conditions of the API's answers, each once: one that concerns all pipelines comes with each of them."""
    return [
        ShownCondition(
            severity=each.severity,
            summary=each.summary,
            since=each.since,
            cause=each.cause,
            remedy=each.remedy,
            retry=_retry(each.name, each.pipeline, each.code, each.tables),
            tables=each.tables,
            tables_total=each.tables_total,
            acknowledged=None if each.acknowledged is None else _acknowledged(each.acknowledged),
            id=each.id,
        )
        for each in {each.id: each for each in found}.values()
    ]


def _retry(name: str, pipeline: str | None, code: str | None, tables: Sequence[str]) -> str | None:
    """The command for a quarantined table, as a dashboard has a button. After a change that `schema_changes: halt`
    holds back the remedy is another command."""
    if name != "CutlineTableQuarantined" or code == Code.SCHEMA_CHANGE:
        return None
    return f"cutline table retry {pipeline} {tables[0] if len(tables) == 1 else 'TABLE'}"


def _acknowledged(found: models.Acknowledgement | Acknowledgement) -> str:
    until = "while it lasts" if found.until is None else f"until {when(found.until)}"
    return f"acknowledged by {found.by} {until}: {found.note}"


def in_order(found: Iterable[ShownCondition]) -> list[ShownCondition]:
    """The most severe first, of these in the order in which they were judged; what is acknowledged comes last."""
    return sorted(found, key=lambda each: (each.acknowledged is not None, _rank(each.severity)))


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def paragraphs(found: ShownCondition, now: float, *, ids: bool = False) -> list[Text]:
    """What is said of a condition, a paragraph each: what and since when; cause; remedy; who has taken note."""
    style = "bright_black" if found.acknowledged is not None else _STYLES.get(found.severity, "")
    since = "" if found.since is None else f" (for {duration(max(0.0, now - found.since))})"
    sentences = [Text.assemble((f"{found.severity.upper()} {found.summary}", style), since)]
    if ids:
        sentences.append(Text(f"since {dated(found.since, now)}, id {found.id}"))
    if found.cause:
        sentences.append(Text(f"cause: {found.cause}"))
    if found.remedy:
        sentences.append(Text(f"remedy: {found.remedy}"))
    if found.retry:
        sentences.append(Text(f"to retry it: {found.retry}"))
    if found.tables_total > len(found.tables):
        sentences.append(Text(f"tables: {', '.join(found.tables)} and {found.tables_total - len(found.tables)} more"))
    if found.acknowledged is not None:
        sentences.append(Text(found.acknowledged))
    return sentences


def block(found: ShownCondition, now: float, width: int | None, *, ids: bool = False) -> list[Text]:
    """The lines of a condition: what it is, and below it the rest, wrapped at `width` (None: not wrapped)."""
    first, *others = paragraphs(found, now, ids=ids)
    return [*wrapped(first, width), *(line for each in others for line in wrapped(each, width, 2))]


def listed(found: Iterable[ShownCondition], now: float, width: int | None) -> Items:
    """All of them as a list that may be shortened."""
    ordered = in_order(found)

    def more(shown: int) -> Text:
        left = ordered[shown:]
        counts = [(word, sum(1 for each in left if each.severity == word)) for word in SEVERITIES]
        named = ", ".join(f"{count} {word}" for word, count in counts if count)
        noun = "condition" if len(left) == 1 else "conditions"
        return Text(f"and {len(left)} more {noun} ({named}): `cutline conditions` lists them", style="yellow")

    return Items(items=[block(each, now, width) for each in ordered], more=more)
