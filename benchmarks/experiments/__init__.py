"""The experiments, a file for each: configuration with its presets, help, and what it runs.

A new file of this folder is found by itself. Whatever registers an `Experiment` has a command, with its settings in the
help. No module here imports torch, so that the help is there at once: what an experiment runs is imported when it runs.
"""

from importlib import import_module
from pkgutil import iter_modules

from nfn_monomial.benchmarks.settings.register import EXPERIMENTS, Experiment, Study, register

__all__ = ["EXPERIMENTS", "Experiment", "Study", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
