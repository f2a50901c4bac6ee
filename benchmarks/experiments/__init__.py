"""The experiments, a file for each: configuration with its presets, help, what it runs, and its committed results.

A new file of this folder is found by itself. Whatever registers an `Experiment` has a command, its settings in
``list settings``, and its results among those that ``results`` makes again. No module here imports torch, so that the
help is there at once: what an experiment runs is imported when it is run.
"""

from importlib import import_module
from pkgutil import iter_modules

from nfn_monomial.benchmarks.settings.register import EXPERIMENTS, Experiment, Rerun, Study, register

__all__ = ["DATA", "EXPERIMENTS", "Experiment", "Rerun", "Study", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

DATA = {
    "zoos/digits": "zoo make",
    "zoos/digits2500": "zoo make --networks 2500 --out zoos/digits2500",
    "zoos/tuning": "zoo make --networks 2500 --seed 20261122 --out zoos/tuning",
    "zoos/fresh1000": "zoo make --networks 1000 --seed 20261124 --out zoos/fresh1000",
    "zoos/fresh": "zoo make --networks 2500 --seed 20261123 --out zoos/fresh",
    "zoos/fresh25000": "zoo make --networks 25000 --seed 20261125 --out zoos/fresh25000",
    "zoos/unseen": ("zoo make --images mnist14 --channels 12,14,10 --networks 2500 --seed 20261201 --out zoos/unseen"),
    "zoos/mixed": "zoo make --vary-architecture --networks 1000 --out zoos/mixed",
    "zoos/kinds": "zoo make --vary-architecture --kinds cnn,residual,transformer --networks 600 --out zoos/kinds",
    "inrs/mnist5k": "inr make --images mnist5k",
    "inrs/mnist5k8": "inr make --images mnist5k --fits 8 --seed 1 --out inrs/mnist5k8",
    "inrs/crops": "inr make --images crops",
}
"""Folder of data -> the command that makes it, which goes on where it was and does nothing if it is there."""
