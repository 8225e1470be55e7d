"""Ask a running daemon: what `fleet status` does before it reads the store. Imports httpx, and no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agents.host.process_control import ProcessName, is_alive
from fleet.errors import FleetError
from fleet.private_files import read_private

#: Files of the daemon's folder: where the API listens, and what it asks for.
ADDRESS, TOKEN = "api.json", "api.token"
_TIMEOUT_SECS = 5.0
#: Under a flood of connections the daemon closes the oldest that have not asked yet, which may be ours.
_TRIES = 5


def ask(root: Path, path: str) -> Any:
    """Get the JSON of a path of the API, or None where no daemon of this host runs on this folder.

    Args:
        root: The daemon's folder.
        path: Such as `/v1/status`.

    Raises:
        FleetError: A daemon is there but does not answer, or refuses.
    """
    return request(root, "GET", path)


def request(
    root: Path, method: str, path: str, body: bytes | None = None, *, timeout_secs: float = _TIMEOUT_SECS
) -> Any:
    """Ask for anything that may be asked twice, and get JSON, or None as of `ask`.

    Args:
        root: The daemon's folder.
        method: Of HTTP.
        path: Of the API.
        body: JSON to send.
        timeout_secs: Longest wait for the answer.

    Raises:
        FleetError: A daemon is there but does not answer, or refuses.
    """
    import httpx

    found = _address(root)
    if found is None:
        return None
    url, token = found
    headers = {"Authorization": f"Bearer {token}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        # Not through a proxy of the environment: the token belongs to nobody else.
        with httpx.Client(timeout=timeout_secs, trust_env=False) as client:
            for left in reversed(range(_TRIES)):
                try:
                    answer = client.request(method, url + path, headers=headers, content=body)
                    break
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    if not left:
                        raise
        told = answer.json()
        if answer.is_success:
            return told
        raise FleetError(f"the daemon at {url} gives no answer to {path}: {told['detail']}")
    except httpx.ConnectError:
        # It ends just now.
        return None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise FleetError(f"the daemon at {url} gives no answer to {path}: {error}") from error


def _address(root: Path) -> tuple[str, str] | None:
    """Address and token of the daemon of a folder; None where none of this host runs on it.

    Raises:
        FleetError: The files cannot be read, or it cannot be told.
    """
    try:
        address = json.loads((root / ADDRESS).read_text())
        url, token = str(address["url"]), read_private(root / TOKEN).strip()
        # Versions before did not tell the start; their daemons are not asked.
        daemon = ProcessName(pid=int(address["pid"]), started=int(address.get("started", -1)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FleetError(f"{root / ADDRESS}: cannot be read ({error}); start `fleet up` again") from error
    # One that was killed left its address behind. Whoever listens there now must not get the token.
    return (url, token) if _is_here(daemon, root) else None


def _is_here(daemon: ProcessName, root: Path) -> bool:
    """Whether a daemon runs on this host.

    Raises:
        FleetError: It cannot be told.
    """
    try:
        return ProcessName.of(daemon.pid) == daemon and is_alive(daemon)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError as error:
        raise FleetError(
            f"{root / ADDRESS}: process {daemon.pid} cannot be looked at ({error.strerror}), so it does not "
            "get the token; run this as the user of the daemon"
        ) from error
