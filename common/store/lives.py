"""The lives of pipelines: each creation of a name is a life of its own, with an id that no other has.

| path | content |
|---|---|
| `pipelines/{name}.{number:010d}.json` | life `number` of this name has begun: its id, its folder, when |
| `pipelines/{name}.{number:010d}.ended.json` | it has ended: its pipeline was deleted |

A name is for people; whatever must not mix two pipelines of one name goes by the id: the folder of the store, streams
and notes in Redis, the lake. So whoever outlived its pipeline (a suspended leader, a sweep, an apply under way) still
writes and removes, but only where nobody looks any more.

Records are put if absent and no deletion has to take back a name, so no step can hit another life:

- Life k+1 begins by putting its record, once life k has ended. Of all that try, one succeeds. The newest record is the
  name's life, or the name is free if that has ended; older records count for nothing.
- A life without a definition is a creation that was cut short: the next `define` of that name completes it.
- A life ends by one record more, put after its files are removed. Repeating that changes nothing.
- Records of lives before the newest may be removed by anybody. A creation that was late finds a newer record after it
  put its own, and begins again. The newest record stays, so no number comes back.
- `sweep` removes the folders of lives that have ended. It lists the folders first: whichever it sees then had a record
  before, so the records listed after tell whether its life is over.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import BinaryIO, NewType

from cutline.common.errors import ConfigError
from cutline.common.store.backends import Backend
from cutline.common.store.envelope import opened, sealed

PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
DEFINED = "pipeline.json"
Key = NewType("Key", str)
"""A life as a word, `{name}.{id}`: what Redis's keys and the services' notes about a pipeline are named by."""
LIFE = re.compile(rf"({PIPELINE_NAME.pattern})\.[0-9a-f]{{12}}")
"""Such a word."""
_RECORD = re.compile(rf"({PIPELINE_NAME.pattern})\.(\d{{10}})(\.ended)?\.json")
_RECORDS = "pipelines"
_KEPT_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One creation of a pipeline: the `number`th of its name. Its files are in `folder`; `at`: seconds since 1970."""

    name: str
    number: int
    id: str
    folder: str
    at: float = 0.0

    @property
    def key(self) -> Key:
        """The life as a word."""
        return Key(f"{self.name}.{self.id}")


def name_of(key: Key) -> str:
    """The name of the pipeline of a key."""
    return key.rpartition(".")[0]


class Lives:
    """The lives in a store. All methods block; safe for several threads. They raise Unavailable if the store does not
    answer."""

    def __init__(self, backend: Backend) -> None:
        """Nothing is read yet."""
        self._backend = backend
        self._known: dict[tuple[str, int], Life] = {}  # a record never changes
        self._defined: set[Key] = set()

    def current(self) -> list[Life]:
        """Return the life of each defined pipeline, by name. Costs one listing, and a look at each life that is
        new."""
        numbers = self._numbers()
        found = [life for name in sorted(numbers) if (life := self._newest(name, numbers[name])) is not None]
        self._defined = {
            life.key for life in found if life.key in self._defined or self._backend.exists(f"{life.folder}/{DEFINED}")
        }
        return [life for life in found if life.key in self._defined]

    def named(self, name: str) -> Life | None:
        """Return the life of this name, defined or not; None if the name is free. Costs a listing."""
        return self._newest(name, self._numbers().get(name, {}))

    def begin(self, name: str) -> Life:
        """Return the life of this name; begin one, durable on return, if the name is free."""
        while True:
            numbers = self._numbers().get(name, {})  # of one moment: whoever looked again would miss a life's end
            newest = max(numbers, default=0)
            if newest and not numbers[newest]:
                if (found := self._read(name, newest)) is not None:
                    return found
            else:
                drawn = secrets.token_hex(6)
                life = Life(name=name, number=newest + 1, id=drawn, folder=f"{name}.{drawn}", at=time.time())
                if self._put(life) and max(self._numbers()[name]) == life.number:
                    return life

    def end(self, life: Life) -> None:
        """Put that a life has ended, durable on return. May be repeated, by anybody, at any time."""
        self._backend.create(_ended(life.name, life.number), sealed({"id": life.id}))

    def has_ended(self, life: Life) -> bool:
        """Whether a life has ended. Costs a listing."""
        numbers = self._numbers().get(life.name, {})
        return numbers.get(life.number, False) or max(numbers, default=0) > life.number

    def sweep(self) -> list[Life]:
        """Remove the folders of lives that have ended, and records before the newest once it is a day old; return the
        ended lives that still have a record.

        Whoever outlived its pipeline may write after it: repeat it now and then.
        """
        folders = [name for name in self._backend.names("") if LIFE.fullmatch(name)]
        records = self._numbers()
        for folder in folders:
            numbers = records.get(folder.partition(".")[0], {})
            life = self._read(folder.partition(".")[0], max(numbers)) if numbers else None
            if life is not None and (life.folder != folder or numbers[life.number]):
                self._backend.remove_all(folder)
        ended = []
        for name, numbers in records.items():
            newest = self._read(name, max(numbers))
            for number in sorted(numbers):
                life = self._read(name, number)
                if newest is None or life is None or (life == newest and not numbers[number]):
                    continue
                ended.append(life)
                if life != newest and time.time() - newest.at > _KEPT_SECONDS:
                    self._backend.remove(_began(name, number))
                    self._backend.remove(_ended(name, number))
        return ended

    def _numbers(self) -> dict[str, dict[int, bool]]:
        """The numbers of the lives on record, by name, and whether each has ended. Costs a listing."""
        found: dict[str, dict[int, bool]] = {}
        ended: set[tuple[str, int]] = set()
        for file in self._backend.names(_RECORDS):
            if (match := _RECORD.fullmatch(file)) is None:
                continue
            name, number = match[1], int(match[2])
            if match[3]:
                ended.add((name, number))
            else:
                found.setdefault(name, {})[number] = False
        for name, number in ended:
            if number in found.get(name, {}):
                found[name][number] = True
        return found

    def _newest(self, name: str, numbers: Mapping[int, bool]) -> Life | None:
        """The newest of these lives; None without one, or if it has ended."""
        newest = max(numbers, default=0)
        return self._read(name, newest) if newest and not numbers[newest] else None

    def _read(self, name: str, number: int) -> Life | None:
        if (known := self._known.get((name, number))) is not None:
            return known
        data = self._backend.read(path := _began(name, number))
        if data is None:  # removed since the listing: it is not the newest any more
            return None
        found = self._known[name, number] = Life(**opened(data, self._backend.location(path)))
        return found

    def _put(self, life: Life) -> bool:
        return self._backend.create(_began(life.name, life.number), sealed(asdict(life)))


class Folder:
    """The folder of one pipeline: that of a life, which never changes once it is known.

    Without a life it is that of its name's life, as soon as it has one; until then nothing is in it, and whoever writes
    gets a ConfigError. Methods are those of `Backend`, with paths below the folder.
    """

    def __init__(self, backend: Backend, name: str, lives: Lives | None = None, life: Life | None = None) -> None:
        """Take the store's lives, or the life itself."""
        self.name = name
        self.look_seconds = backend.look_seconds
        self.lives = Lives(backend) if lives is None else lives
        self._backend = backend
        self._life = life

    def find(self) -> Life | None:
        """Return the life; None if the name has none now. Costs a listing until there is one."""
        if self._life is None:
            self._life = self.lives.named(self.name)
        return self._life

    @property
    def life(self) -> Life:
        """The life. Raises ConfigError without one."""
        if (found := self.find()) is None:
            raise ConfigError(f"the store has no pipeline {self.name!r}", "define it first")
        return found

    def bind(self, life: Life | None) -> None:
        """Be the folder of this life."""
        self._life = life

    def create(self, path: str, data: bytes) -> bool:
        """Put if absent."""
        return self._backend.create(self._path(path), data)

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file."""
        return None if self.find() is None else self._backend.read(self._path(path))

    def exists(self, path: str) -> bool:
        """Whether there is a file of this name."""
        return self.find() is not None and self._backend.exists(self._path(path))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder below."""
        return [] if self.find() is None else self._backend.names(self._path(folder))

    def open_read(self, path: str) -> BinaryIO:
        """Open a file for reading. Raises FileNotFoundError."""
        return self._backend.open_read(self._path(path))

    def open_new(self, path: str) -> tuple[BinaryIO, str]:
        """Begin a file that grows."""
        return self._backend.open_new(self._path(path))

    def settle(self, file: BinaryIO, temporary: str, path: str) -> None:
        """Make the bytes durable and give the file its name."""
        self._backend.settle(file, temporary, self._path(path))

    def sync(self, folder: str) -> None:
        """Make the names in a folder below durable."""
        self._backend.sync(self._path(folder))

    def discard(self, file: BinaryIO, temporary: str) -> None:
        """Drop a file that was begun."""
        self._backend.discard(file, temporary)

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        self._backend.remove(self._path(path))

    def stale(self, folder: str, name: str) -> bool:
        """Whether a temporary file is so old that its writer must be dead."""
        return self._backend.stale(self._path(folder), name)

    def location(self, path: str) -> str:
        """Return the absolute path or the object's address."""
        return self._backend.location(self._path(path))

    def remove_folders(self) -> None:
        """Remove what is left of it where folders are left without files."""
        self._backend.remove_folder(self.life.folder)

    def _path(self, path: str) -> str:
        return f"{self.life.folder}/{path}"


def _began(name: str, number: int) -> str:
    return f"{_RECORDS}/{name}.{number:010d}.json"


def _ended(name: str, number: int) -> str:
    return f"{_RECORDS}/{name}.{number:010d}.ended.json"
