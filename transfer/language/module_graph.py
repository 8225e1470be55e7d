"""TVM's JSON of a module as a graph of nodes, for walks that end whatever the text holds.

Nodes name their children by index, so they may be shared, and may contain themselves. Whoever walks visits
each node once and pays for what it looks at. Called by `transfer.language.program` and
`transfer.features.access`.
"""

from __future__ import annotations

import json
from typing import Any

from transfer.language.primitives import MAX_NUMBER, WalkBudget

#: Largest module text that is parsed, and most values in it; the largest operator of TVM's suite has 0.1 MB.
_MOST_CHARS = 8_000_000
_MOST_VALUES = 1_000_000
#: Longest name of a node's type.
_MOST_NAME_CHARS = 256

#: What a walk over a graph of another form may end in; it then tells nothing.
GRAPH_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)


def parse_module(text: str) -> Any:
    """Parse the text of a module; None where it is too large.

    Raises:
        ValueError, RecursionError: It is no JSON.
    """
    if len(text) > _MOST_CHARS or text.count(",") + text.count("[") + text.count("{") > _MOST_VALUES:
        return None
    return json.loads(text)


class ModuleGraph:
    """Nodes of TVM's JSON graph: `{"type": ..., "data": ...}`, children by their index.

    Args:
        nodes: Of TVM 0.27, or of the graph that TVM wrote until 0.20.
        budget: Pays for every look at a node.
    """

    def __init__(self, nodes: list[Any], budget: WalkBudget) -> None:
        self.is_old = any("type_key" in node for node in nodes[:2])
        self.nodes = [_renewed(node) for node in nodes] if self.is_old else nodes
        self.budget = budget

    def __len__(self) -> int:
        return len(self.nodes)

    def type(self, index: int) -> str:
        """Name of a node's type, without the name space.

        Raises:
            BudgetError: The walk has looked at too much.
        """
        # Name spaces of types change between TVM versions (tir, tirx, s_tir); their names hardly do.
        self.budget.spend(1)
        name = self.nodes[index]["type"]
        if type(name) is not str or len(name) > _MOST_NAME_CHARS:
            raise TypeError("the type of a node is no name")
        return name.rpartition(".")[2]

    def data(self, index: int) -> Any:
        """What a node holds.

        Raises:
            BudgetError: The walk has looked at too much.
        """
        content = self.nodes[index]["data"]
        # Many nodes may share one long list.
        self.budget.spend(1 + len(content) if isinstance(content, list) else 1)
        return content

    def text(self, index: int) -> str:
        """The text that a node holds.

        Raises:
            TypeError: It holds something else.
        """
        text = self.data(index)
        if not isinstance(text, str):
            raise TypeError("not a text")
        return text

    def integer(self, index: int, otherwise: int) -> int:
        """Value of an integer constant, cut to 64 bits; `otherwise` for anything symbolic."""
        if self.type(index) != "IntImm":
            return otherwise
        value = self.data(index)["value"]
        return int(min(max(int(value if self.is_old else self.data(value)), -MAX_NUMBER), MAX_NUMBER))


def _renewed(node: dict[str, Any]) -> dict[str, Any]:
    """A node of the old graph in the form of the new one; there, children are numbers written as text."""
    data = node.get("data", node.get("repr_str", []))
    if "attrs" in node:
        data = {
            name: int(value) if value.lstrip("-").isdigit() else value
            for name, value in node["attrs"].items()
        }
    return {"type": node["type_key"], "data": data}
