"""The rivals by their names."""

from __future__ import annotations

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
PUBLISHED = ("tlp", "mtl-tlp", "tlp-lstm", "tlp-mse", SMALL_BATCHES)
#: All that need nothing but a store; TVM's own need its programs built again (`benchmarks.learning_tvm`).
RIVALS = (
    *("xgboost", "lightgbm", "xgboost-pooled", "lightgbm-pooled", "mlp", "nearest-device", "mean-rank"),
    *PUBLISHED,
)


def make_rival(name: str) -> Ranker:
    """The ranker with a name of `RIVALS`.

    Raises:
        TransferError: There is none.
    """
    match name:
        case "xgboost" | "lightgbm":
            return BoostedTrees(name)
        case "xgboost-pooled" | "lightgbm-pooled":
            return BoostedTrees("xgboost" if name.startswith("xgboost") else "lightgbm", pooled=True)
        case "mlp":
            return SummaryMlp()
        case "nearest-device":
            return NearestDevice("nearest")
        case "mean-rank":
            return NearestDevice("mean")
        case "tlp" | "mtl-tlp":
            return PublishedTlp(multi_task=name == "mtl-tlp")
        case "tlp-lstm":
            return PublishedTlp(TlpConfig(sequence="lstm"))
        case "tlp-mse":
            return PublishedTlp(TlpConfig(loss="mse"))
    if name == SMALL_BATCHES:
        return PublishedTlp(TlpConfig(batch=_SMALL_BATCH), multi_task=True)
    raise TransferError(f"unknown rival {name!r}; known: {', '.join(RIVALS)}")
