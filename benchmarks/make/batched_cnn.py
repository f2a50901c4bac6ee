"""Forward and backward pass of many small CNNs at once, each with weights and images of its own.

Convolutions are im2col and one batched GEMM over networks, on preallocated buffers in channels-last order. The
backward pass is written out because autograd allocates and re-lays every intermediate: the same 32 networks take 2.4
times as much CPU time in `mixed_training`, which vmaps torch's own modules and so reads any architecture (one run, one
thread, networks without dropout, 0.35 and 0.85 s).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.layout import Layout, Variable, layers_of

__all__ = ["BatchedCNN", "patch_table"]

Holder = TypeVar("Holder")


class _Stage:
    """Buffers of one convolution for ``n`` networks with ``b`` images each, and its views of weights and gradients.

    ``rows`` ``(n, b * out * out, k * k * c_in)``: the patches. ``z`` ``(n, b * out * out, c_out)``: its activations.
    ``padded`` ``(n, b, extent, extent, c_in)``: the input inside its zero border (absent for the first convolution,
    whose patches come from a table of the images).
    """

    def __init__(self, model: BatchedCNN, kernel: Variable, bias: Variable, size: int, first: bool) -> None:
        n, b, pad = model.n, model.b, model.padding
        k, _, c_in, c_out = kernel.shape
        self.out = (size + 2 * pad - k) // 2 + 1
        extent = max(size + pad, 2 * (self.out - 1) + k)
        new = model.weights.new_empty
        self.kernel, self.kernel_grad = model.views(kernel, k * k * c_in, c_out)
        self.bias, self.bias_grad = model.views(bias, 1, c_out)
        self.z, self.dz = (new(n, b * self.out**2, c_out) for _ in range(2))
        self.z_map, self.dz_map = (t.view(n, b, self.out, self.out, c_out) for t in (self.z, self.dz))
        self.rows = new(n, b * self.out**2, k * k * c_in)
        self.scratch = new(n, k * k * c_in, c_out)
        self.folds: list[tuple[Tensor, Tensor]] = []
        if first:
            return
        self.drows = torch.empty_like(self.rows)
        self.padded, self.dpadded = (new(n, b, extent, extent, c_in).zero_() for _ in range(2))
        self.inner, self.dinner = (t[:, :, pad : pad + size, pad : pad + size] for t in (self.padded, self.dpadded))
        self.patches = self.rows.view(n, b, self.out, self.out, k, k * c_in)
        self.windows = _windows(self.padded, k, self.out)
        # The patches overlap: their gradients are added up patch by patch, which are longer runs of memory than taps.
        patches = self.drows.view(n, b, self.out, self.out, k, k, c_in)
        self.folds = [
            (self.dpadded[:, :, 2 * y : 2 * y + k, 2 * x : 2 * x + k], patches[:, :, y, x])
            for y in range(self.out)
            for x in range(self.out)
        ]


def _first(holder: Holder, n: int) -> Holder:
    """A copy of an object with the first ``n`` networks of every tensor it holds."""
    part = copy.copy(holder)
    for name, value in vars(holder).items():
        if isinstance(value, Tensor):
            setattr(part, name, value[:n])
    return part


def _windows(padded: Tensor, k: int, out: int) -> Tensor:
    """View ``(n, b, y, x, c)`` as the patches ``(n, b, out, out, k, k * c)`` of a stride-2 convolution."""
    n, b, _, _, c = padded.shape
    s = padded.stride()
    return padded.as_strided((n, b, out, out, k, k * c), (s[0], s[1], 2 * s[2], 2 * s[3], s[2], 1))


def patch_table(x: Tensor, k: int, padding: int) -> Tensor:
    """Images ``(n, H, W, C)`` -> their patches ``(n, out * out * k * k * C)``, made once for the whole training."""
    n, size, _, c = x.shape
    out = (size + 2 * padding - k) // 2 + 1
    extent = max(size + padding, 2 * (out - 1) + k)
    padded = x.new_zeros(1, n, extent, extent, c)
    padded[0, :, padding : padding + size, padding : padding + size] = x
    return _windows(padded, k, out).reshape(n, -1)


class BatchedCNN:
    """``n`` CNNs, each on its own ``b`` images: stride-2 convolutions, global average pooling, one dense layer.

    ``weights`` ``(n, columns)`` is used in place; ``grad``, of the same shape, is overwritten by ``backward``.
    """

    def __init__(self, weights: Tensor, layout: Layout, b: int, size: int, padding: int, relu: bool) -> None:
        self.weights, self.grad = weights, torch.zeros_like(weights)
        self.n, self.b, self.padding = len(weights), b, padding
        self.relu = relu
        *convolutions, dense = layers_of(layout)
        self.kernel_size = convolutions[0].kernel_size[0]
        self.stages: list[_Stage] = []
        for layer in convolutions:
            assert layer.bias is not None, "layouts made by cnn_layout have biases"
            stage = _Stage(self, layer.kernel, layer.bias, size, first=not self.stages)
            self.stages.append(stage)
            size = stage.out
        assert dense.bias is not None, "layouts made by cnn_layout have biases"
        self.head, self.head_grad = self.views(dense.kernel, *dense.fan)
        self.head_bias, self.head_bias_grad = self.views(dense.bias, 1, dense.fan[1])
        self.dropped = weights.new_empty(self.n, b * size**2, dense.fan[0])

    def running(self, n: int) -> BatchedCNN:
        """The first ``n`` networks, on the same buffers."""
        model = _first(self, n)
        model.n, model.stages = n, [_first(stage, n) for stage in self.stages]
        for stage in model.stages:
            stage.folds = [(target[:n], part[:n]) for target, part in stage.folds]
        return model

    def views(self, variable: Variable, *shape: int) -> tuple[Tensor, Tensor]:
        """A variable and its gradient as ``(n, *shape)``."""
        columns = slice(variable.start, variable.end)
        return self.weights[:, columns].view(-1, *shape), self.grad[:, columns].view(-1, *shape)

    def forward(self, table: Tensor, index: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Logits ``(n, b, classes)`` of the images ``index`` ``(n * b,)`` of a patch table.

        ``masks``: per convolution, what its activations ``(n, b, out, out, c)`` are multiplied by (dropout).
        """
        torch.index_select(table, 0, index, out=self.stages[0].rows.view(len(index), -1))
        self.masks = masks
        for i, stage in enumerate(self.stages):
            if i:
                stage.patches.copy_(stage.windows)
            torch.baddbmm(stage.bias, stage.rows, stage.kernel, out=stage.z)
            stage.z.relu_() if self.relu else stage.z.tanh_()
            last = i + 1 == len(self.stages)
            target = self.dropped.view_as(stage.z_map) if last else self.stages[i + 1].inner
            if masks:
                torch.mul(stage.z_map, masks[i], out=target)
            else:
                target.copy_(stage.z_map)
        self.pooled = self.dropped.view(self.n, self.b, -1, self.head.shape[1]).mean(2)
        return torch.baddbmm(self.head_bias, self.pooled, self.head)

    def evaluate(self, x: Tensor) -> Tensor:
        """Logits ``(n, images, classes)`` of every network on the same images ``(images, H, W, C)``."""
        table = patch_table(x, self.kernel_size, self.padding)
        parts: list[Tensor] = []
        for start in range(0, len(x), self.b):  # the last part may be short: its end is filled up, and cut off below
            index = torch.arange(start, start + self.b, device=x.device).clamp_(max=len(x) - 1)
            parts.append(self.forward(table, index.repeat(self.n)))
        return torch.cat(parts, 1)[:, : len(x)]

    def backward(self, dlogits: Tensor) -> None:
        """Fill ``grad`` from the gradient ``(n, b, classes)`` of the loss by the last call's logits."""
        self.head_grad.copy_(torch.bmm(self.pooled.mT, dlogits))
        torch.sum(dlogits, 1, keepdim=True, out=self.head_bias_grad)
        positions = self.stages[-1].out ** 2
        dpooled = torch.bmm(dlogits, self.head.mT).div_(positions)
        upstream = dpooled.view(self.n, self.b, 1, 1, -1).expand_as(self.stages[-1].z_map)
        for i in range(len(self.stages) - 1, -1, -1):
            stage = self.stages[i]
            if self.masks:
                upstream = torch.mul(upstream, self.masks[i], out=stage.dz_map)
            if self.relu:
                torch.ops.aten.threshold_backward.grad_input(upstream, stage.z_map, 0, grad_input=stage.dz_map)
            else:
                torch.ops.aten.tanh_backward.grad_input(upstream, stage.z_map, grad_input=stage.dz_map)
            stage.kernel_grad.copy_(torch.bmm(stage.rows.mT, stage.dz, out=stage.scratch))
            torch.sum(stage.dz, 1, keepdim=True, out=stage.bias_grad)
            if i:
                torch.bmm(stage.dz, stage.kernel.mT, out=stage.drows)
                stage.dpadded.zero_()
                for target, part in stage.folds:
                    target.add_(part)
                upstream = stage.dinner
