"""Names under which the state file keeps the candidates of a family: live devices' apart from the others'.

Devices that share candidates have a common name (`fleet.planner.candidate_requests.sharing_names`), which
depends on the devices that a fleet has now. The file outlives them: what replay devices have drawn must not
become a program that runs on a live one that comes later.
"""

from __future__ import annotations

from collections.abc import Collection

#: Ends the name under which replay devices share candidates where others of their family are live.
REPLAY_SUFFIX = "-replay"


class FamilyNames:
    """Names in the file of the names under which devices share.

    Args:
        live: Families with live devices; more may come. What was drawn where a family had none is of its
            replay devices, also in a later life: live ones must not measure it. None: all are.
    """

    def __init__(self, live: Collection[str] | None) -> None:
        self._live = live

    def of(self, family: str) -> tuple[str, ...]:
        """Names in the file whose candidates those who share a name know; new ones go under the last.

        Without live devices the family's own candidates, of an earlier life, are for its replay devices too.
        """
        if self._live is None or family in self._live or family.endswith(REPLAY_SUFFIX):
            return (family,)
        return family, f"{family}{REPLAY_SUFFIX}"

    def reader(self, name: str) -> str:
        """The name under which those share who know the candidates of a name in the file."""
        family = name.removesuffix(REPLAY_SUFFIX)
        return name if self._live is None or family in self._live else family
