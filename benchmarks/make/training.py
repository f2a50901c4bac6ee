"""Training many small CNNs at once: every network of a batch has its own images and hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.layout import Layout, layers_of
from nfn_monomial.errors import InvalidValueError

from .batched_cnn import BatchedCNN, patch_table
from .plans import Plan, Schedule, initial_weights
from .recipes import Optimizer, Recipe

__all__ = ["ImageTensors", "Trained", "train"]


@dataclass(frozen=True)
class ImageTensors:
    """Images on the device of training: ``x`` ``(n, H, W, C)``, ``y`` ``(n,)``, for training and for testing."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Trained:
    """In the order of the recipes, on the CPU: ``weights`` ``(n, columns)`` as in the layout, each metric ``(n,)``."""

    weights: Tensor
    metrics: dict[str, Tensor]


class _Optimizer:
    """Adam, RMSprop or SGD with Keras' defaults, for all networks at once with one learning rate each."""

    def __init__(self, kind: Optimizer, weights: Tensor, learning_rate: Tensor) -> None:
        self.kind, self.weights, self.learning_rate = kind, weights, learning_rate
        self.mean = torch.zeros_like(weights) if kind == "adam" else weights.new_empty(0)
        self.square = torch.zeros_like(weights) if kind != "sgd" else weights.new_empty(0)
        self.scratch = torch.empty_like(weights) if kind != "sgd" else weights.new_empty(0)

    def step(self, grad: Tensor, number: int) -> None:
        """Update the first ``len(grad)`` networks; ``number`` counts from 1."""
        n = len(grad)
        weights, rate = self.weights[:n], self.learning_rate[:n]
        if self.kind == "sgd":
            weights.addcmul_(grad, rate, value=-1)
            return
        square, scratch = self.square[:n], self.scratch[:n]
        decay, correction = (0.999, math.sqrt(1 - 0.999**number) / (1 - 0.9**number))
        if self.kind == "rmsprop":
            decay, correction = 0.9, 1.0
        else:
            self.mean[:n].lerp_(grad, 0.1)
        square.mul_(decay).addcmul_(grad, grad, value=1 - decay)
        torch.sqrt(square, out=scratch).add_(1e-7)
        torch.div(self.mean[:n] if self.kind == "adam" else grad, scratch, out=scratch)
        weights.addcmul_(scratch, rate, value=-correction)


@torch.no_grad()
def train(
    recipes: Sequence[Recipe],
    images: ImageTensors,
    layout: Layout,
    *,
    padding: int,
    batch: int = 32,
    check: Callable[[], None] = lambda: None,
) -> Trained:
    """Train one network per recipe; the recipes share activation and optimizer, and all or none have dropout.

    ``batch``: images of a step. ``check`` is called before every step; what it raises ends the training.
    """
    if len({(r.activation, r.optimizer, r.dropout > 0) for r in recipes}) != 1:
        raise InvalidValueError("recipes trained together share activation and optimizer, and all or none have dropout")
    first, device = recipes[0], images.train_x.device
    size = images.train_x.shape[1]
    table = patch_table(images.train_x, layers_of(layout)[0].kernel_size[0], padding)
    classes = layout[-1].shape[-1]
    targets = torch.nn.functional.one_hot(images.train_y, classes).float()

    draw = partial(initial_weights, layout=layout)
    units = _mask_shapes(layout, size, padding, batch)
    schedule = Schedule(recipes, draw, len(table), batch, sum(map(math.prod, units)), device)
    weights = schedule.weights
    masks = torch.stack([plan.masks for plan in schedule.plans]).to(device)
    column = torch.tensor([[r.learning_rate, 2 * r.l2reg] for r in schedule.recipes], device=device)
    decay = weights.new_zeros(weights.shape)  # the gradient of the penalty is 2 l2reg w, on kernels only
    for layer in layers_of(layout):
        decay[:, layer.kernel.start : layer.kernel.end] = column[:, 1:]
    optimizer = _Optimizer(first.optimizer, weights, column[:, :1])

    everyone = BatchedCNN(weights, layout, batch, size, padding, relu=first.activation == "relu")
    for n, steps in schedule.stretches():
        model = everyone.running(n)
        for t in steps:
            check()
            index = schedule.order[t, :n].reshape(-1)
            offset = t * 7919 % max(1, sum(map(math.prod, units)))
            logits = model.forward(table, index, list(_cut(masks[:n], units, offset)))
            p = logits.sub_(logits.amax(-1, keepdim=True)).exp_()  # softmax() takes five times as long on short rows
            p.div_(p.sum(-1, keepdim=True))
            dlogits = p.sub_(torch.index_select(targets, 0, index).view_as(p))
            model.backward(dlogits.div_(batch))
            model.grad.addcmul_(model.weights, decay[:n])
            optimizer.step(model.grad, t + 1)
    metrics = _measure(everyone, schedule.plans, images)
    return Trained(weights.cpu()[schedule.back], {name: values[schedule.back] for name, values in metrics.items()})


def _mask_shapes(layout: Layout, size: int, padding: int, batch: int) -> list[tuple[int, ...]]:
    """Shape of one network's activations ``(b, out, out, c)`` after each convolution."""
    shapes: list[tuple[int, ...]] = []
    for layer in layers_of(layout)[:-1]:
        size = (size + 2 * padding - layer.kernel_size[0]) // 2 + 1
        shapes.append((batch, size, size, layer.fan[1]))
    return shapes


def _cut(masks: Tensor, shapes: Sequence[tuple[int, ...]], offset: int) -> Iterator[Tensor]:
    if not masks.numel():
        return
    for shape in shapes:
        end = offset + math.prod(shape)
        yield masks[:, offset:end].view(-1, *shape)
        offset = end


def _measure(model: BatchedCNN, plans: Sequence[Plan], images: ImageTensors) -> dict[str, Tensor]:
    """Accuracy and cross-entropy on the test images, and on the training images that each network saw."""
    metrics: dict[str, Tensor] = {}
    for part, x, y in (("test", images.test_x, images.test_y), ("train", images.train_x, images.train_y)):
        logits = model.evaluate(x)
        losses = logits.logsumexp(-1) - logits.gather(-1, y.expand(model.n, -1)[..., None])[..., 0]
        for name, values in (("accuracy", logits.argmax(-1) == y), ("loss", losses)):
            rows = values.double().cpu()
            if part == "train":
                means = [row[plan.subset].mean() for row, plan in zip(rows, plans, strict=True)]
                metrics[f"{part}_{name}"] = torch.stack(means)
            else:
                metrics[f"{part}_{name}"] = rows.mean(1)
    return metrics
