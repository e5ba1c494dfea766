"""The dashboard's files: `/` is the page, `/static/{version}/…` are its modules, styles and vendored libraries.

The version is a digest of all files, so that browsers keep them for ever and still take a new one at once; only the
page itself is asked for each time (ETag). Everything is read and compressed once, at the start. The page needs no
token: it has no data, and calls the API as any client does.

One module has no file: `app/rules.js` has the table of common/commands/rules.py, which `GET /v1/operations` answers
too, the phases of common/phases.py, and the settings that a pipeline keeps for life.
"""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Response

from cutline.common.commands import rules
from cutline.common.config.pipeline import FIXED
from cutline.common.phases import Phase

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FIRST = ("app/early.js", "app/main.js")
"""What the page itself names."""
FOR_EVER = "public, max-age=31536000, immutable"
ASK_EACH_TIME = "no-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file in both forms, as it is sent."""

    media_type: str
    plain: bytes
    compressed: bytes
    etag: str


def contents() -> dict[str, bytes]:
    """Return every file of the dashboard, by its path. An OSError means that the installation is incomplete."""
    files = {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }
    return {**files, "app/rules.js": _rules().encode()}


def _rules() -> str:
    """The module that no file has: when each operation is refused, the phases of a table, and what a pipeline keeps."""
    found = {"RULES": rules.to_json(), "PHASES": list(Phase), "FIXED": FIXED}
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in found.items())


def router() -> APIRouter:
    """Return the routes of the dashboard. Reads its files; an OSError means that the installation is incomplete."""
    files = contents()
    version = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    page = _page(files.pop("index.html").decode(), sorted(files), f"/static/{version}/")
    index = _asset("index.html", page.encode())
    policy = {
        "Content-Security-Policy": _policy(page),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    assets = {name: _asset(name, content) for name, content in files.items()}
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def dashboard(
        accept_encoding: Annotated[str, Header()] = "", if_none_match: Annotated[str, Header()] = ""
    ) -> Response:
        """Return the page."""
        return _answer(index, ASK_EACH_TIME, accept_encoding, if_none_match, policy)

    @routes.get("/static/{asked}/{name:path}")
    async def static(
        asked: str,
        name: str,
        accept_encoding: Annotated[str, Header()] = "",
        if_none_match: Annotated[str, Header()] = "",
    ) -> Response:
        """Return a file. A page of an earlier version gets today's file, which its browser must not keep."""
        if name not in assets:
            raise HTTPException(404, f"the dashboard has no file {name!r}; reload the page")
        caching = FOR_EVER if asked == version else ASK_EACH_TIME
        return _answer(assets[name], caching, accept_encoding, if_none_match, policy)

    return routes


def _page(html: str, names: list[str], base: str) -> str:
    """The page with versioned addresses. It names all modules, so that the browser asks for them at once, not one level
    of imports after the other."""
    modules = [name for name in names if name.endswith(".mjs") or (name.startswith("app/") and name not in FIRST)]
    links = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in modules)
    return html.replace("<!-- modules -->", links).replace("/static/", base)


def _policy(page: str) -> str:
    """A policy that allows files of this origin and, by its hash, the import map of the page; nothing else."""
    inline = [found.encode() for found in re.findall(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)]
    hashes = "".join(f" 'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in inline)
    return (
        f"default-src 'none'; script-src 'self'{hashes}; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _asset(name: str, content: bytes) -> Asset:
    return Asset(
        media_type=MEDIA_TYPES[Path(name).suffix],
        plain=content,
        compressed=gzip.compress(content, 9, mtime=0),
        etag=f'"{hashlib.sha256(content).hexdigest()[:20]}"',
    )


def _answer(asset: Asset, caching: str, encodings: str, known: str, policy: dict[str, str]) -> Response:
    headers = {**policy, "ETag": asset.etag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    if "gzip" in encodings:
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, headers=headers, media_type=asset.media_type)
    return Response(asset.plain, headers=headers, media_type=asset.media_type)
