"""The rivals by their names."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.rivals.mlp import SummaryMlp
from benchmarks.rivals.nearest import NearestDevice
from benchmarks.rivals.tlp import PublishedTlp
from benchmarks.rivals.trees import BoostedTrees
from transfer.errors import TransferError
from transfer.evaluate.rankers import Ranker
from transfer.train.published_procedure import TlpConfig

#: A thousand rows are one published batch, so 50 epochs are 50 steps: MTL-TLP with batches that give more.
_SMALL_BATCH = 64
SMALL_BATCHES = f"mtl-tlp-batch-{_SMALL_BATCH}"
#: Those that read the published features of TLP; they take minutes for a thousand rows.
_PUBLISHED: dict[str, Callable[[], Ranker]] = {
    "tlp": PublishedTlp,
    "mtl-tlp": lambda: PublishedTlp(multi_task=True),
    SMALL_BATCHES: lambda: PublishedTlp(TlpConfig(batch=_SMALL_BATCH), multi_task=True),
}
PUBLISHED = tuple(_PUBLISHED)
#: All that need nothing but a store; TVM's own need its programs built again (`benchmarks.learning_tvm`).
RIVALS: dict[str, Callable[[], Ranker]] = {
    "xgboost": lambda: BoostedTrees("xgboost"),
    "lightgbm": lambda: BoostedTrees("lightgbm"),
    "xgboost-pooled": lambda: BoostedTrees("xgboost", pooled=True),
    "lightgbm-pooled": lambda: BoostedTrees("lightgbm", pooled=True),
    "mlp": SummaryMlp,
    "nearest-device": lambda: NearestDevice("nearest"),
    "mean-rank": lambda: NearestDevice("mean"),
    **_PUBLISHED,
}


def make_rival(name: str) -> Ranker:
    """The ranker with a name of `RIVALS`.

    Raises:
        TransferError: There is none.
    """
    if name not in RIVALS:
        raise TransferError(f"unknown rival {name!r}; known: {', '.join(RIVALS)}")
    return RIVALS[name]()
