"""The token that Ray lets callers in by: whoever has it runs code as this user.

Ray itself writes it to a file that everybody may read. So a Ray of our own gets one in the environment, which
only this user may read, and no file at all; a cluster's comes from a file that is checked first.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from fleet.errors import FleetError
from fleet.private_files import NotPrivateError, read_private

#: Names are Ray's. The first goes before the second, the second before the file in the home folder.
VARIABLE, PATH_VARIABLE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
#: As many characters as Ray's own tokens need at least to be no guess.
_LEAST_CHARS = 16


def token_path() -> Path:
    """The file that Ray takes its token from where the environment has none."""
    path = os.environ.get(PATH_VARIABLE)
    return Path(path).expanduser() if path else Path.home() / ".ray" / "auth_token"


def give_own_token() -> None:
    """Put a token for a Ray of our own into the environment, where there is none yet.

    Ray's processes inherit it. Ray reads it once a process, so it stays for all sessions of this one.
    """
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = secrets.token_hex(32)


def give_cluster_token(address: str) -> None:
    """Put the token of a cluster into the environment, from its file where it is not there yet.

    Args:
        address: `host:port` of the cluster's head, for the error.

    Raises:
        FleetError: There is none, or others can read or replace its file.
    """
    if os.environ.get(VARIABLE):
        return
    path = token_path()
    try:
        token = read_private(path).strip()
    except FileNotFoundError as error:
        raise FleetError(
            f"no token for the Ray cluster at {address}: neither {VARIABLE} is set nor is there a file "
            f"{path}; `(umask 077; ray get-auth-token --generate)` makes one, and every host of the cluster "
            "needs the same"
        ) from error
    except NotPrivateError as error:
        raise FleetError(f"the token of the Ray cluster at {address} is not safe: {error}") from error
    if len(token) < _LEAST_CHARS:
        raise FleetError(
            f"{path}: expected a token of {_LEAST_CHARS} characters at least, got {len(token)}; delete it, "
            "and run: (umask 077; ray get-auth-token --generate)"
        )
    os.environ[VARIABLE] = token
