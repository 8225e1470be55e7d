"""The training of the model."""

#: File of the curves in the folder of a run: one JSON line an epoch (`transfer.train.rows.EpochReport`).
CURVES_NAME = "curves.jsonl"
