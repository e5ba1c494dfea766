"""Commands of people to a pipeline, and their outcomes, in files of the store (put if absent, numbered from 1).

A command is accepted once its file exists. The pipeline's leader takes commands in the order of their numbers, and
writes outcomes in that order too, but for commands that wait for the Spark writer, which later ones go past. So the
newest outcome says which commands are finished: all up to it but those that it names as *open* and that have no
outcome since; and its *standing orders* are those in force. A new leader reads these, and then only the commands after.

A command that the Spark writer carries out is *taken* once (`takers/`, put if absent): by the Spark writer before it
has an effect, or by the leader that withdraws it. So what was cancelled, or failed since no answer came, is never
carried out later.

Commands and outcomes that are RETAINED numbers older than the newest outcome are removed. So a number that is free
because its command was removed lies below the newest outcome, and a late `add` that takes one notices.

A client's key is *claimed* (`keys/`, put if absent) before its first command is written: the claim has the number of
the newest command of that moment, so a command with this key can only be later. A call with a key looks there first,
and reads just the commands after that number, up to the one with the key: mostly one, however many are retained.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from cutline.common.errors import ConfigError, ProtocolError
from cutline.common.store import bodies
from cutline.common.store.backends import side_by_side
from cutline.common.store.command_records import Command, Orders, Outcome
from cutline.common.store.envelope import canonical, opened, sealed
from cutline.common.store.lives import Folder

RETAINED = 1_000
SPARK = "the Spark writer"
__all__ = ("SPARK", "Command", "Commands", "Orders", "Outcome")


class Commands:
    """The commands of one pipeline and their outcomes. All methods block; safe for several threads.

    They raise Unavailable if the store does not answer, ProtocolError if a file is corrupt.
    """

    def __init__(self, folder: Folder) -> None:
        """Call `PipelineStore.commands` instead."""
        self._folder = folder
        self._commands: dict[int, Command] = {}  # read before; a command never changes

    def add(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        by: str,
        now: float,
        origin: str | None = None,
        key: str | None = None,
    ) -> Command:
        """Write a command under the next free number; durable on return.

        If a retained command has this `key`, the same kind and the same arguments, that one is returned. With other
        content, or if its key has the same name (before the last space): KeyUsed. After Unavailable it may or may
        not be written: only a call with a key can be repeated.
        """
        arguments = json.loads(canonical(arguments))
        nonce = secrets.token_hex(8)
        seen = 0 if key is None else self._claimed(_name(key))
        while True:
            numbers = self._numbers("commands")
            if key is not None and (found := self._with_name(_name(key), [n for n in numbers if n > seen])):
                return _same(found, key, kind, arguments)
            seen = max(numbers, default=0)
            n = seen + 1
            command = Command(n=n, kind=kind, arguments=arguments, by=by, at=now, origin=origin, key=key, nonce=nonce)
            if not self._folder.create(self._path("commands", n), sealed(command.to_json())):
                continue  # another command took the number; it may have our key
            if n > 1 and not self._folder.exists(self._path("commands", n - 1)):
                self._folder.remove(self._path("commands", n))  # others have gone on long ago
                continue
            return command

    def with_key(self, name: str) -> Command | None:
        """Return the retained command whose key has this name, None if there is none (yet)."""
        claim = self._folder.read(path := self._key_path(name))
        if claim is None:
            return None
        after = int(opened(claim, self._folder.location(path))["after"])
        return self._with_name(name, [n for n in self._numbers("commands") if n > after])

    def _claimed(self, name: str) -> int:
        """Claim a key's name; return the number that all commands with it are greater than."""
        path, after = self._key_path(name), self.newest()
        if self._folder.create(path, sealed({"after": after})):
            return after
        claim = self._folder.read(path)
        if claim is None:  # retired in between
            return self._claimed(name)
        return int(opened(claim, self._folder.location(path))["after"])

    def _with_name(self, name: str, numbers: Sequence[int]) -> Command | None:
        """The command of these whose key has this name; the oldest are read first, a few at a time."""
        at, count = 0, 1
        while at < len(numbers):
            for command in self._read(numbers[at : at + count]):
                if command.key is not None and _name(command.key) == name:
                    return command
            at, count = at + count, 4 * count
        return None

    def get(self, n: int) -> Command | None:
        """Return command `n`, None if there is none (any more)."""
        if (known := self._commands.get(n)) is not None:
            return known
        body = self._get("commands", n)
        if body is None:
            return None
        found = self._commands[n] = Command(**body)
        if len(self._commands) > 2 * RETAINED:
            self._commands = {}
        return found

    def list(self, *, after: int = 0, before: int | None = None, limit: int = 100) -> tuple[Command, ...]:
        """Return retained commands: the oldest `limit` of those after `after`, in order; with `before`, the newest
        `limit` of those between the two, newest first."""
        numbers = [n for n in self._numbers("commands") if n > after and (before is None or n < before)]
        if before is None:
            return self._read(numbers[:limit])
        return self._read(numbers[max(0, len(numbers) - limit) :])[::-1]

    def newest(self) -> int:
        """Return the number of the newest command, 0 if there was none. Costs a listing."""
        return max(self._numbers("commands"), default=0)

    # What became of them

    def outcome(self, n: int) -> Outcome | None:
        """Return the outcome of command `n`, None if it has none yet, or none any more."""
        body = self._get("outcomes", n)
        return None if body is None else Outcome.from_json(body)

    def put_outcome(self, outcome: Outcome) -> bool:
        """Write an outcome, durable on return; False if the command has one: of another leader, or our own."""
        path, before = self._path("outcomes", outcome.n), outcome.n - 1
        if not self._folder.create(path, sealed(outcome.to_json())):
            return False
        while before in outcome.open:
            before -= 1
        if before > 0 and not self._folder.exists(self._path("outcomes", before)):
            self._folder.remove(path)  # other leaders have gone on long ago
            return False
        return True

    def take(self, n: int, taker: str) -> str:
        """Take command `n` for the Spark writer (SPARK), or withdraw it, for a reason; return who has it, durably: the
        first one."""
        path = self._path("takers", n)
        if self._folder.create(path, sealed({"n": n, "taker": taker})):
            return taker
        return self.taker(n) or taker

    def taker(self, n: int) -> str | None:
        """Return who has taken command `n`: SPARK, or why it was withdrawn; None if nobody has."""
        body = self._get("takers", n)
        return None if body is None else str(body["taker"])

    def newest_outcome(self) -> Outcome | None:
        """Return the outcome of the last finished command, None if no command was finished yet. Costs a listing."""
        while numbers := self._numbers("outcomes"):
            if (found := self.outcome(numbers[-1])) is not None:
                return found
        return None

    def unfinished(self, newest: Outcome | None, limit: int = RETAINED) -> tuple[Command, ...]:
        """Return the commands that have no outcome yet, oldest first, at most `limit` of those after `newest`, the
        newest outcome."""
        if newest is None:
            return self.list(limit=limit)
        left_open = [self.get(n) for n in newest.open if self.outcome(n) is None]
        return (*(command for command in left_open if command is not None), *self.list(after=newest.n, limit=limit))

    def orders(self) -> Orders:
        """Return the standing orders. Costs a listing."""
        newest = self.newest_outcome()
        return Orders() if newest is None else newest.orders

    def retire(self) -> None:
        """Remove the commands and outcomes of which the newest outcome is more than RETAINED numbers away."""
        oldest = max(self._numbers("outcomes"), default=0) - RETAINED
        for n in self._numbers("commands"):
            if n <= oldest:
                command = self.get(n)
                self._folder.remove(self._path("commands", n))
                if command is not None and command.key is not None:
                    self._folder.remove(self._key_path(_name(command.key)))
        for folder in ("outcomes", "takers"):
            for n in self._numbers(folder):
                if n <= oldest:
                    self._folder.remove(self._path(folder, n))
        self._retire_keys(oldest)

    def _retire_keys(self, oldest: int) -> None:
        """Remove the claims as old that no command followed: their calls failed, and nobody repeated them."""
        commands = self._read(self._numbers("commands"))
        used = {self._key_path(_name(command.key)) for command in commands if command.key is not None}
        for name in self._folder.names("keys"):
            path = f"keys/{name}"
            if path not in used and (claim := self._folder.read(path)) is not None:
                if int(opened(claim, self._folder.location(path))["after"]) <= oldest:
                    self._folder.remove(path)

    def remove(self, *, all_but_newest: bool = False) -> None:
        """Remove the files of a deleted pipeline; with `all_but_newest` the newest outcome stays, and says so."""
        for folder in ("commands", "takers"):
            for n in self._numbers(folder):
                self._folder.remove(self._path(folder, n))
        for name in self._folder.names("keys"):
            self._folder.remove(f"keys/{name}")
        outcomes = self._numbers("outcomes")
        for n in outcomes[:-1] if all_but_newest else outcomes:
            self._folder.remove(self._path("outcomes", n))

    # Files

    def _read(self, numbers: Sequence[int]) -> tuple[Command, ...]:
        found = [command for _, command in side_by_side(self.get, numbers) if command is not None]
        return tuple(sorted(found, key=lambda command: command.n))

    def _key_path(self, name: str) -> str:
        return f"keys/{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _path(self, folder: str, n: int) -> str:
        return bodies.numbered(folder, n)

    def _numbers(self, folder: str) -> Sequence[int]:
        return bodies.numbers(self._folder, folder)

    def _get(self, folder: str, n: int) -> dict[str, Any] | None:
        path = self._path(folder, n)
        body = bodies.get(self._folder, path)
        if body is not None and body.get("n") != n:
            raise ProtocolError(
                f"{self._folder.location(path)} holds number {body.get('n')}", "restore it from a backup"
            )
        return body


class KeyUsed(ConfigError):
    """A key was used for another command."""


def _name(key: str) -> str:
    """The client's own part of a key; after a space there may be a digest of the request."""
    return key.rpartition(" ")[0] or key


def _same(command: Command, key: str, kind: str, arguments: Mapping[str, Any]) -> Command:
    if (command.key, command.kind, command.arguments) == (key, kind, arguments):
        return command
    raise KeyUsed(
        f"the key {command.key!r} was used for command {command.n} ({command.kind}) with other content",
        "use a new key for each command",
    )
