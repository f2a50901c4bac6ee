"""Derivations that look for parameters that do not matter, as `WeightSpace.from_module` does."""

import functools
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from nfn_monomial import trace
from nfn_monomial.running import inputs_of
from nfn_monomial.trace import Derivation
from nfn_monomial.verify import dead_parts


def derive(module: Any, example_inputs: Any = (), *, kwargs: Any = None, **options: Any) -> Derivation:
    """Derives the nodes of a module or an exported program, and its dead parameters."""
    inputs, runs = inputs_of(example_inputs), module
    if isinstance(module, ExportedProgram):
        (inputs, kwargs), runs = module.example_inputs, module.module(check_guards=False)
    dead = None
    if isinstance(runs, nn.Module):
        dead = functools.partial(dead_parts, module=runs, inputs=inputs, kwargs=kwargs)
    return trace.derive(module, example_inputs, kwargs=kwargs, dead=dead, **options)
