"""What networks that train together draw beforehand, when each of them stops, and what is done if one diverges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from nfn_monomial.benchmarks.data.layout import Layout, ZooError, layers_of

from .recipes import Recipe, ZooConfig, redraw

__all__ = ["Draw", "Plan", "Schedule", "initial_parameters", "initial_weights", "train_bounded"]

ATTEMPTS = 5  # per network, before a zoo whose networks keep diverging is given up
LARGEST_WEIGHT = 1e3  # beyond this a network counts as diverged though its weights are finite


Draw = Callable[[Recipe, torch.Generator], Tensor]
"""First weights of a network in one row, ``(columns,)``."""


def initial_weights(recipe: Recipe, generator: torch.Generator, *, layout: Layout) -> Tensor:
    """One row of the zoo, ``(columns,)``, before training; fans count the kernel's positions, as Keras does."""
    row = torch.zeros(layout[-1].end)
    for layer in layers_of(layout):
        kernel = layer.kernel
        value, bias = _drawn(recipe, math.prod(layer.kernel_size), *layer.fan, generator)
        row[kernel.start : kernel.end] = value.flatten()
        if layer.bias is not None:
            row[layer.bias.start : layer.bias.end] = bias
    return row


def initial_parameters(recipe: Recipe, generator: torch.Generator, *, module: nn.Module) -> Tensor:
    """All parameters of a module in one row, ``(columns,)``, before training.

    Kernels and biases are drawn as `initial_weights` does. Gains of norms are 1, their shifts 0; parameters of no
    layer, such as positions, are normal with the recipe's standard deviation.
    """
    parts = []
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                if name == "weight":
                    rows, columns, *kernel = parameter.shape
                    value, bias = _drawn(recipe, math.prod(kernel), columns, rows, generator)
                    value = value.view(*kernel, columns, rows).movedim((-1, -2), (0, 1))
                else:
                    value = bias
            elif isinstance(layer, (nn.BatchNorm2d, nn.LayerNorm)):
                value = torch.full(parameter.shape, float(name == "weight"))
            else:
                value = torch.randn(parameter.shape, generator=generator) * recipe.init_std
            parts.append(value.flatten())
    return torch.cat(parts)


def _drawn(
    recipe: Recipe, positions: int, inputs: int, outputs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A layer's kernel ``(positions * inputs, outputs)`` and bias ``(outputs,)``."""
    fan_in, fan_out = positions * inputs, positions * outputs
    noise = torch.randn(fan_in, outputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) * (recipe.init_std if recipe.b_init == "RandomNormal" else 0.0)
    if recipe.w_init == "orthogonal":
        q, r = torch.linalg.qr(noise if fan_in >= outputs else noise.T)
        q = q * r.diagonal().sign()
        return (q if fan_in >= outputs else q.T), bias
    if recipe.w_init == "TruncatedNormal":
        low, high = torch.special.ndtr(torch.tensor([-2.0, 2.0]))
        return torch.special.ndtri(low + (high - low) * torch.special.ndtr(noise)) * recipe.init_std, bias
    std = {
        "glorot_normal": math.sqrt(2 / (fan_in + fan_out)),
        "he_normal": math.sqrt(2 / fan_in),
        "RandomNormal": recipe.init_std,
    }[recipe.w_init]
    return noise * std, bias


class Plan:
    """What one network draws at random: its first weights, its images, their order and its dropout masks."""

    def __init__(self, recipe: Recipe, draw: Draw, images: int, batch: int, units: int) -> None:
        generator = torch.Generator().manual_seed(recipe.random_seed)
        self.weights = draw(recipe, generator)
        count = max(1, round(recipe.train_fraction * images))
        self.subset = torch.randperm(images, generator=generator)[:count]
        self.steps = max(1, recipe.epochs * count // batch)
        rounds = math.ceil(self.steps * batch / count)
        stream = torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])
        self.order = self.subset[stream[: self.steps * batch]].to(torch.int32)
        # Twice the masks that a step needs; each step reads them from another offset.
        keep = torch.rand(2 * units if recipe.dropout else 0, generator=generator) >= recipe.dropout
        self.masks = keep / (1 - recipe.dropout)


class Schedule:
    """The networks of one training, longest first, so that those still running are always the first.

    Batches run on from one epoch into the next. Networks that need fewer steps stop earlier and cost nothing from then
    on.

    Attributes:
        recipes: in the order of training, as all that follows.
        plans: what each network has drawn.
        weights: the first ones, ``(n, columns)``.
        order: images of every step, int32 ``(steps, n, batch)``.
        back: numbers that put results into the order of the recipes as they were given, ``(n,)``.
    """

    def __init__(
        self, recipes: Sequence[Recipe], draw: Draw, images: int, batch: int, units: int, device: torch.device
    ) -> None:
        plans = [Plan(recipe, draw, images, batch, units) for recipe in recipes]
        rank = sorted(range(len(plans)), key=lambda i: -plans[i].steps)
        self.plans, self.recipes = [plans[i] for i in rank], [recipes[i] for i in rank]
        self.back = torch.tensor(rank).argsort()
        self.weights = torch.stack([plan.weights for plan in self.plans]).to(device)
        order = torch.zeros(self.plans[0].steps, len(plans), batch, dtype=torch.int32)
        for i, plan in enumerate(self.plans):
            order[: plan.steps, i] = plan.order.view(-1, batch)
        self.order = order.to(device)

    def stretches(self) -> Iterator[tuple[int, range]]:
        """How many networks take the following steps, and the steps, counted from 0."""
        steps, done = [plan.steps for plan in self.plans], 0
        for end in sorted(set(steps)):
            yield sum(s >= end for s in steps), range(done, end)
            done = end


def train_bounded(
    config: ZooConfig,
    numbers: Sequence[int],
    recipes: Sequence[Recipe],
    run: Callable[[list[Recipe]], tuple[dict[str, Tensor], dict[str, Tensor]]],
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Recipe], int]:
    """Train networks until all are bounded: those that diverge are drawn again.

    Args:
        config: what recipes are drawn from.
        numbers: of the n networks in the zoo.
        recipes: theirs at first.
        run: trains recipes; weights and results, each ``(n, ...)``.

    Returns:
        Weights, results, the recipes in the end, and how many networks diverged on the way.

    Raises:
        ZooError: if a network diverges too often.
    """
    chosen = list(recipes)
    weights, results = run(chosen)
    diverged = attempt = 0
    while bad := _unbounded(weights):
        diverged, attempt = diverged + len(bad), attempt + 1
        if attempt > ATTEMPTS:
            raise ZooError(
                f"network {numbers[bad[0]]} diverged {attempt} times: choose smaller learning rates than "
                f"{config.learning_rate} and, for sgd, {config.sgd_learning_rate}"
            )
        for i in bad:
            chosen[i] = redraw(config, numbers[i], attempt, chosen[i])
        again, scores = run([chosen[i] for i in bad])
        for found, news in ((weights, again), (results, scores)):
            for name, values in news.items():
                found[name][bad] = values
    return weights, results, chosen, diverged


def _unbounded(weights: dict[str, Tensor]) -> list[int]:
    """Numbers of the networks with an entry that is too large, or NaN."""
    bounded = [(t.abs() <= LARGEST_WEIGHT).flatten(1).all(1) for t in weights.values()]
    return (~torch.stack(bounded).all(0)).nonzero().flatten().tolist()
