"""Ask a running daemon: what `fleet status` does before it reads the store. Imports no server."""

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
    import httpx

    try:
        address = json.loads((root / ADDRESS).read_text())
        url, token = str(address["url"]), read_private(root / TOKEN).strip()
        # Versions before did not tell the start; their daemons are not asked.
        daemon = ProcessName(pid=int(address["pid"]), started=int(address.get("started", -1)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FleetError(f"{root / ADDRESS}: cannot be read ({error}); start `fleet up` again") from error
    if not _is_here(daemon, root):
        # It was killed and left its address behind. Whoever listens there now must not get the token.
        return None
    try:
        # Not through a proxy of the environment: the token belongs to nobody else.
        with httpx.Client(timeout=_TIMEOUT_SECS, trust_env=False) as client:
            for left in reversed(range(_TRIES)):
                try:
                    answer = client.get(url + path, headers={"Authorization": f"Bearer {token}"})
                    break
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    if not left:
                        raise
        answer.raise_for_status()
        return answer.json()
    except httpx.ConnectError:
        # It ends just now.
        return None
    except (httpx.HTTPError, ValueError) as error:
        raise FleetError(f"the daemon at {url} gives no answer to {path}: {error}") from error


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
