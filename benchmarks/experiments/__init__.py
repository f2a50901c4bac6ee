"""The experiments, a file for each: its configuration with presets, its help and its study.

A new file of this folder is imported automatically. An `Experiment` that it registers has a command, with its settings
in the help. No module here imports torch, so that the help comes at once; a study is imported when it runs.
"""

from importlib import import_module
from pkgutil import iter_modules

from nfn_monomial.benchmarks.settings.register import EXPERIMENTS, Experiment, Study, register

__all__ = ["EXPERIMENTS", "Experiment", "Study", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
