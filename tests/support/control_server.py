"""The control service as a process of its own, over HTTP, for tests."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import httpx

from cutline.common.store.access import Token
from cutline.common.store.store import Store
from cutline.services.control.api.access import new_token
from cutline.services.control.api.roles import Role
from tests.support.server_process import LocalServer
from tools.programs import program


def is_ready(url: str) -> bool:
    """Whether the control service at this address is ready."""
    try:
        return httpx.get(f"{url}/readyz", verify=False).status_code == 200
    except httpx.HTTPError:
        return False


class ControlServer(LocalServer):
    """One control service over this Redis and store; `settings` are environment variables without `CUTLINE_`, in lower
    case."""

    name = "control"

    def __init__(self, *, redis_url: str, store_url: str, embedded: bool = False, **settings: object) -> None:
        super().__init__()
        self.store = Store(store_url)
        self._embedded = embedded
        self._settings = {"redis_url": redis_url, "store_url": store_url, **settings}

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if 'api_cert' in self._settings else 'http'}://{self.host}:{self.port}"

    @property
    def first_token(self) -> str | None:
        """The admin's token that its first start printed."""
        found = re.search(r"shown this once: (\S+)", self.log.read_text())
        return found[1] if found else None

    def token(self, role: Role, *, name: str | None = None, expires_at: float | None = None) -> str:
        """A token with this role, put into the store as the service itself does."""
        text, token_id, sha256 = new_token()
        about = {"id": token_id, "sha256": sha256, "name": name or role, "role": role, "by": "test"}
        assert self.store.access.put_token(Token(at=time.time(), expires_at=expires_at, **about))
        return text

    def client(self, token: str | None = None, **keywords: Any) -> httpx.Client:
        """A client with this token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=90, **keywords)

    def _command(self) -> list[str]:
        known = {**self._settings, "api_host": self.host, "api_port": self.port}
        settings = [f"CUTLINE_{name.upper()}={value}" for name, value in known.items()]
        run = [sys.executable, "-P", "-m", "cutline.services.control", *(["--embedded"] if self._embedded else [])]
        return [program("env"), *settings, *run]

    def _answers(self) -> bool:
        return is_ready(self.url)
