"""What models consist of; and training in less memory: blocks that are computed twice, and batches in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nfn_monomial.checks import Size, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.features import Features


class Blocks(nn.Sequential):
    """Modules one after another, as `torch.nn.Sequential` with the same names in the state dict.

    Attributes:
        recompute: whether backward computes the activations inside of a block again, from its input, which alone is
            kept (`torch.utils.checkpoint`). A block that draws at random draws the same again.
    """

    recompute = False

    def forward(self, x: Any) -> Any:
        """Whatever the first module takes -> what the last one gives."""
        for block in self:
            again = self.recompute and torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


def mlp_head(width: int, hidden: int, out_features: int, activation: type[nn.Module], dropout: float) -> nn.Sequential:
    """A pooled vector of this width -> outputs: two hidden layers, with dropout behind both."""
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
    """Have all blocks in a model computed again in backward, or no longer: less memory, one more forward pass of them.

    Outputs and gradients are the same. What is kept grows by one block's input with every block.

    Args:
        model: any; `MessagePassingNFN` and `MessagePassingEditor` consist of blocks. The layers of `MonomialNFN` and
            `EquivariantNFN` keep little but their inputs, so that computing them again saves nothing: see
            `micro_batches`.
        recompute: whether.

    Returns:
        How many stacks of blocks there are.

    >>> from nfn_monomial.models import MessagePassingNFN, recompute_blocks
    >>> from nfn_monomial.space import WeightSpace
    >>> recompute_blocks(MessagePassingNFN(WeightSpace.mlp([2, 8, 1], "relu"), layers=12))
    1
    """
    stacks = [module for module in model.modules() if isinstance(module, Blocks)]
    for blocks in stacks:
        blocks.recompute = recompute
    return len(stacks)


@checked
def micro_batches(
    model: nn.Module,
    loss: Callable[[Any, slice], Tensor],
    networks: Features | Mapping[str, Tensor],
    size: Size,
) -> Tensor:
    """Backward of the mean loss over a batch, some networks at a time: the same gradients in less memory.

    Gradients are added to the parameters' as by ``mean_loss.backward()``.

    Args:
        model: takes any part of the batch; what it makes of a network does not depend on the others.
        loss: takes the model's outputs for some networks, and the slice of the batch in which these lie, by which
            targets are picked; returns the mean of their losses.
        networks: the batch, `Features` or named tensors ``(B, C, *shape)``.
        size: so many networks at a time; the last part may be smaller.

    Returns:
        The mean loss over all networks, without gradients.

    Raises:
        ValueError: if there are no networks.

    >>> from nfn_monomial import MonomialNFN, WeightSpace
    >>> from nfn_monomial.testing import random_networks
    >>> space = WeightSpace.mlp([2, 8, 1], "relu")
    >>> networks, targets = random_networks(space, 20, dtype=torch.float32), torch.randn(20, 1)
    >>> loss = lambda outputs, part: nn.functional.mse_loss(outputs, targets[part])
    >>> micro_batches(MonomialNFN(space), loss, networks, 8).shape
    torch.Size([])
    """
    tensors = networks.tensors if isinstance(networks, Features) else tuple(networks.values())
    count = len(tensors[0]) if tensors else 0
    if not count:
        raise InvalidValueError("micro_batches: there are no networks, of which no mean can be taken")
    total = torch.zeros((), device=tensors[0].device)
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        some = networks[part] if isinstance(networks, Features) else {name: t[part] for name, t in networks.items()}
        share = loss(model(some), part) * ((part.stop - start) / count)
        share.backward()  # type: ignore[no-untyped-call]
        total = total + share.detach()
    return total
