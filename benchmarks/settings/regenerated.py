"""The committed results: every folder of ``benchmarks/results`` with a table, and the command that makes it.

From cheap to dear. Minutes are of one core that has nothing else to do, finished data included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DATA", "REGENERATED", "Regenerated"]


@dataclass(frozen=True)
class Regenerated:
    """A results folder.

    Attributes:
        name: of the folder.
        command: of `nfn-monomial`, without ``--out``.
        minutes: about how long it takes.
        data: folder of data that it needs, see `DATA`.
    """

    name: str
    command: str
    minutes: float
    data: str = ""


DATA: Mapping[str, str] = {
    "zoos/digits": "zoo make",
    "zoos/digits2500": "zoo make --networks 2500 --out zoos/digits2500",
    "zoos/tuning": "zoo make --networks 2500 --seed 20261122 --out zoos/tuning",
    "zoos/fresh1000": "zoo make --networks 1000 --seed 20261124 --out zoos/fresh1000",
    "zoos/fresh": "zoo make --networks 2500 --seed 20261123 --out zoos/fresh",
    "zoos/fresh25000": "zoo make --networks 25000 --seed 20261125 --out zoos/fresh25000",
    "zoos/mixed": "zoo make --vary-architecture --networks 1000 --out zoos/mixed",
    "zoos/kinds": "zoo make --vary-architecture --kinds cnn,residual,transformer --networks 600 --out zoos/kinds",
    "inrs/mnist5k": "inr make --images mnist5k",
    "inrs/mnist5k8": "inr make --images mnist5k --fits 8 --seed 1 --out inrs/mnist5k8",
    "inrs/crops": "inr make --images crops",
}
"""Folder of data -> the command that makes it, which goes on where it was and does nothing if it is there."""

_PREDICT = "predict-generalization --set train_sets=original"
_RECIPE = "--set training.epochs=30 --set training.batch_size=32"
_WIDE = (
    "statnn,np,hnp,balanced-statnn,balanced-hnp,monomial,monomial-hnp,stats,message-passing,message-passing-stats,"
    "probes,combined,monomial-conv"
)
REGENERATED = (
    Regenerated("params", "params", 1),
    Regenerated("ratios", "bench layers --preset quick", 3),
    Regenerated("demo", "demo", 5),
    Regenerated("cost", "cost", 5),
    Regenerated("ablation", "ablation --data zoos/digits", 5, "zoos/digits"),
    Regenerated("ratios512", "bench layers --set batches=512 --set repeats=5", 6),
    Regenerated("expressivity", "bench expressivity", 11),
    Regenerated("merge", "bench merge", 30),
    Regenerated(
        "mixed",
        f"{_PREDICT} --data zoos/mixed --models gnn,balanced-gnn,monomial-conv --seeds 2 --set training.epochs=20",
        10, "zoos/mixed",
    ),
    Regenerated(
        "predict500-graphs",
        f"{_PREDICT} {_RECIPE} --data zoos/digits2500 --models gnn,gnn-hnp,monomial-gnn,monomial-conv --seeds 1 "
        "--set activations=relu",
        15, "zoos/digits2500",
    ),
    Regenerated(
        "gnn-paper",
        f"{_PREDICT} --data zoos/fresh1000 --models gnn-paper,gnn,monomial,monomial-hnp,message-passing-stats "
        "--seeds 1 --set activations=relu --set training.epochs=30 --set training.batch_size=8",
        15, "zoos/fresh1000",
    ),
    Regenerated(
        "kinds",
        f"{_PREDICT} --data zoos/kinds --models statnn-set,balanced-statnn-set,stats-set,gnn,balanced-gnn,monomial-conv"
        " --seeds 1 --set training.epochs=40",
        20, "zoos/kinds",
    ),
    Regenerated(
        "tune", "tune --data zoos/tuning --models stats,statnn,balanced-statnn --set trials=30 --set seconds=200", 20,
        "zoos/tuning",
    ),
    Regenerated(
        "tune-probes",
        "tune --data zoos/tuning --models probes-stats --set trials=20 --set seconds=800 --set cuts=4 "
        "--set epochs=20,80 --set batch_size=16,32",
        20, "zoos/tuning",
    ),
    Regenerated(
        "tune-combined",
        "tune --data zoos/tuning --models combined --set trials=20 --set seconds=1300 --set cuts=1 --set startup=5 "
        "--set epochs=20,80 --set batch_size=16,32",
        35, "zoos/tuning",
    ),
    Regenerated(
        "predict-fresh200", "predict-generalization --preset tuned --data zoos/fresh1000", 12, "zoos/fresh1000"
    ),
    Regenerated(
        "predict-fresh",
        "predict-generalization --preset tuned --data zoos/fresh",
        25, "zoos/fresh",
    ),
    Regenerated("edit-contrast", "edit-inr --set task=contrast --seeds 3", 25, "inrs/crops"),
    Regenerated("augment", "augment --data zoos/digits --seeds 3", 40, "zoos/digits"),
    Regenerated("edit-dilate", "edit-inr --set task=dilate --seeds 3", 40, "inrs/mnist5k"),
    Regenerated("classify-inr", "classify-inr --data inrs/mnist5k", 40, "inrs/mnist5k"),
    Regenerated(
        "predict500", f"{_PREDICT} {_RECIPE} --data zoos/digits2500 --models {_WIDE} --seeds 3", 60, "zoos/digits2500"
    ),
    Regenerated("classify-inr-medium", "classify-inr --preset medium --data inrs/mnist5k8", 130, "inrs/mnist5k8"),
    Regenerated(
        "predict-fresh5000",
        "predict-generalization --preset tuned --data zoos/fresh25000 --models stats,statnn,balanced-statnn,"
        "message-passing-stats,probes-stats,combined",
        200, "zoos/fresh25000",
    ),
)  # fmt: skip
