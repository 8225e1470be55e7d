"""The files of the dashboard over HTTP: the page, its style and its scripts. They hold no data.

Who has no session gets them too, for they ask for the login. The headers here limit what the page may do in a
browser: it loads from and asks this server only, and runs no script but its own files.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Response

#: Where the files are, beside the page itself.
STATIC_PATH = "/static/"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # A script cannot turn a text into markup, whoever wrote the text.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SAFE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Pages:
    """The files by path, read once.

    Attributes:
        files: Content, media type and entity tag by path.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str, str]] = {}
        for file in resources.files("fleet").joinpath("dashboard", "static").iterdir():
            suffix = f".{file.name.rpartition('.')[2]}"
            if suffix in _TYPES:
                path = "/" if file.name == "index.html" else STATIC_PATH + file.name
                content = file.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                self.files[path] = content, _TYPES[suffix], tag

    @property
    def bytes(self) -> int:
        """Size of all files: what a first visit loads."""
        return sum(len(content) for content, _, _ in self.files.values())


def add_pages(app: FastAPI, pages: Pages) -> None:
    """Add the paths of the files."""

    @app.get("/", include_in_schema=False)
    def page(if_none_match: Annotated[str, Header()] = "") -> Response:
        return _answer(pages, "/", if_none_match)

    @app.get(STATIC_PATH + "{name}", include_in_schema=False)
    def file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if STATIC_PATH + name not in pages.files:
            raise HTTPException(404, f"no file {name!r:.80} belongs to the dashboard")
        return _answer(pages, STATIC_PATH + name, if_none_match)


def _answer(pages: Pages, path: str, known: str) -> Response:
    content, kind, tag = pages.files[path]
    headers = {**SAFE_HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
    if tag in (one.strip() for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
