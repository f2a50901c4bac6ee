"""Parts of models, and training in less memory by blocks that are computed twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nfn_monomial.checks import checked
from nfn_monomial.space.features import Features


class Blocks(nn.Sequential):
    """Modules one after another, as `torch.nn.Sequential` with the same names in the state dict.

    Attributes:
        recompute: whether backward computes the activations inside of a block again, from its input, which alone is
            kept (`torch.utils.checkpoint`). A block that draws at random draws the same again.
    """

    recompute = False

    def forward(self, x: Any) -> Any:
        """Input of the first module -> output of the last one."""
        for block in self:
            again = self.recompute and torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


def mlp_head(width: int, hidden: int, out_features: int, activation: type[nn.Module], dropout: float) -> nn.Sequential:
    """A pooled vector of this width -> outputs: two hidden layers, with dropout after both."""
    return nn.Sequential(
        nn.Linear(width, hidden), activation(), nn.Dropout(dropout),
        nn.Linear(hidden, hidden), activation(), nn.Dropout(dropout),
        nn.Linear(hidden, out_features),
    )  # fmt: skip


def changed(networks: Features, scale: Tensor, change: Features) -> Features:
    """Networks and a change of them, each field of it times a number."""
    fields = zip(networks.tensors, scale, change.tensors, strict=True)
    return Features(networks.layout, tuple(x + s * d for x, s, d in fields))


@checked
def recompute_blocks(model: nn.Module, recompute: bool = True) -> int:
    """Computes all blocks of a model again in backward, or stops that: less memory for one more forward pass of them.

    Outputs and gradients are the same. The memory that is kept grows by one block's input with every block.

    Args:
        model: any; `MessagePassingNFN` and `MessagePassingEditor` consist of blocks. The layers of `MonomialNFN` and
            `EquivariantNFN` keep little but their inputs, so that computing them again saves nothing.
        recompute: whether blocks are computed again.

    Returns:
        The number of stacks of blocks.

    >>> from nfn_monomial.models import MessagePassingNFN, recompute_blocks
    >>> from nfn_monomial.space import WeightSpace
    >>> recompute_blocks(MessagePassingNFN(WeightSpace.mlp([2, 8, 1], "relu"), layers=12))
    1
    """
    stacks = [module for module in model.modules() if isinstance(module, Blocks)]
    for blocks in stacks:
        blocks.recompute = recompute
    return len(stacks)
