"""The CNNs of the Small CNN Zoo by torch's own operations, for tests."""

import torch
from torch import Tensor
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.layout import cnn_layout, unflatten

LAYOUT = cnn_layout()


def torch_forward(rows: Tensor, images: Tensor, padding: int, activation: str) -> Tensor:
    """Logits ``(n, b, 10)`` of images ``(n, b, C, H, W)`` by torch's own convolutions, network by network."""
    tensors = unflatten(rows, LAYOUT)
    logits = []
    for number in range(len(rows)):
        x = images[number]
        for i in range(3):
            x = F.conv2d(x, tensors[f"weight.{i}"][number], tensors[f"bias.{i}"][number], stride=2, padding=padding)
            x = getattr(torch, activation)(x)
        logits.append(F.linear(x.mean((2, 3)), tensors["weight.3"][number], tensors["bias.3"][number]))
    return torch.stack(logits)
