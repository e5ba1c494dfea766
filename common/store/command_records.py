"""A command, its outcome and the standing orders, typed: the only definition of their JSON (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cutline.common.commands.kinds import KINDS, Mode, Refusal, Taken, Wish, wish_of

State = Literal["done", "refused", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A person's command number `n`: of this `kind`, with these arguments (plain JSON).

    `by` asked for it at `at` (seconds since 1970) from `origin`, an address. `key` is the client's own, and after a
    space a digest of the request: the same command with the same key is the same command.
    """

    n: int
    kind: str
    arguments: Mapping[str, Any]
    by: str
    at: float
    origin: str | None = None
    key: str | None = None
    nonce: str = ""

    @property
    def wish(self) -> Wish | Refusal:
        """What it is by its class, or why this version of Cutline can't carry it out."""
        return wish_of(self.kind, self.arguments)

    @property
    def taken(self) -> Taken:
        """How the leader takes it."""
        return KINDS[self.kind].rule.taken if self.kind in KINDS else "alone"

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "n": self.n,
            "kind": self.kind,
            "arguments": dict(self.arguments),
            "by": self.by,
            "at": self.at,
            "origin": self.origin,
            "key": self.key,
            "nonce": self.nonce,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """A pipeline's standing orders: what its leader does until another command says otherwise.

    `definition` is the version in force. `base`: the next epoch starts from this checkpoint, since a restore was
    commanded after journal slot `base_after` while no epoch was to be opened; None: from the newest checkpoint. `purge`
    goes with the mode `deleting`: the lake tables that the pipeline wrote are dropped too. `limits`: rows and bytes a
    second of all readers together, as the last command about them wants (`limits`, or a `define` that changes them);
    None: those of the definition. `anew`: every table is read again in the next epoch, since that was commanded while
    none was to be opened. `mode_since`: when a command's outcome made the mode; None: none did, or it is unknown.
    """

    mode: Mode = "running"
    definition: int = 1
    base: int | None = None
    base_after: int | None = None
    purge: bool = False
    limits: Mapping[str, float | None] | None = None
    anew: bool = False
    mode_since: float | None = field(default=None, compare=False)

    def after(self, before: Orders, now: float) -> Orders:
        """These orders, which follow those `before` now: with the time of another mode."""
        return self if self.mode == before.mode else replace(self, mode_since=now)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, without absent values."""
        body: dict[str, Any] = {
            "mode": self.mode,
            "definition": self.definition,
            "base": self.base,
            "base_after": self.base_after,
            "purge": self.purge,
            "anew": self.anew,
        }
        if self.mode_since is not None:
            body["mode_since"] = self.mode_since
        return body if self.limits is None else body | {"limits": dict(self.limits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of command `n`; `orders` are the standing orders after it.

    `refused`: nothing was done, because it made no sense. `failed`: it was begun and can't be finished. `cancelled`:
    another command withdrew it before it had an effect that lasts. These have a `cause` and a `remedy`. `result` is
    plain JSON. `open`: earlier commands that had no outcome yet, since they wait for the Spark writer.
    """

    n: int
    state: State
    cause: str | None = None
    remedy: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    at: float
    orders: Orders
    open: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "n": self.n,
            "state": self.state,
            "cause": self.cause,
            "remedy": self.remedy,
            "result": dict(self.result),
            "at": self.at,
            "orders": self.orders.to_json(),
            "open": list(self.open),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Outcome:
        """Read what `to_json` gave."""
        known = {**body, "orders": Orders(**body["orders"]), "open": tuple(body["open"])}
        return cls(**known)
