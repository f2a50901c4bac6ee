"""Blocks of a model one after another, whose activations are kept for backward or computed twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nfn_monomial.checks import checked


class Blocks(nn.Sequential):
    """Modules one after another, as `torch.nn.Sequential` with the same names in the state dict.

    Args:
        modules: in order.
        size: so many of them are one block.

    Attributes:
        recompute: whether backward computes the activations inside of a block again, from its input, which alone is
            kept (`torch.utils.checkpoint`). A block that draws at random draws the same again.
    """

    recompute = False

    def __init__(self, *modules: nn.Module, size: int = 1) -> None:
        super().__init__(*modules)
        self.size = size

    def forward(self, x: Any) -> Any:
        """Whatever the first module takes -> what the last one gives."""
        if not (self.recompute and torch.is_grad_enabled()):
            return _run(list(self), x)
        modules = list(self)
        for start in range(0, len(modules), self.size):
            x = checkpoint(_run, modules[start : start + self.size], x, use_reentrant=False)
        return x


def _run(modules: list[nn.Module], x: Any) -> Any:
    for module in modules:
        x = module(x)
    return x


@checked
def recompute_blocks(model: nn.Module, recompute: bool = True) -> int:
    """Have all blocks in a model computed again in backward, or no longer: less memory, one more forward pass of them.

    Outputs and gradients are the same. What is kept grows by one block's input with every block.

    Args:
        model: any; `MessagePassingNFN`, `MonomialNFN` and their equivariant twins consist of blocks.
        recompute: whether.

    Returns:
        How many stacks of blocks were found.

    >>> from nfn_monomial.models import MessagePassingNFN, recompute_blocks
    >>> from nfn_monomial.space import WeightSpace
    >>> recompute_blocks(MessagePassingNFN(WeightSpace.mlp([2, 8, 1], "relu"), layers=12))
    1
    """
    found = [module for module in model.modules() if isinstance(module, Blocks)]
    for blocks in found:
        blocks.recompute = recompute
    return len(found)
