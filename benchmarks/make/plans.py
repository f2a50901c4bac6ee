"""What networks that train together draw beforehand, when each of them stops, and what is done if one diverges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.layout import Layout, ZooError, layers_of

from .recipes import Recipe, ZooConfig, redraw

__all__ = ["Plan", "Schedule", "initial_weights", "train_bounded"]

ATTEMPTS = 5  # per network, before a zoo whose networks keep diverging is given up
LARGEST_WEIGHT = 1e3  # beyond this a network counts as diverged though its weights are finite


def initial_weights(recipe: Recipe, layout: Layout, generator: torch.Generator) -> Tensor:
    """One row of the zoo, ``(columns,)``, before training; fans count the kernel's positions, as Keras does."""
    row = torch.zeros(layout[-1].end)
    for layer in layers_of(layout):
        kernel = layer.kernel
        positions = math.prod(layer.kernel_size)
        fan_in, fan_out = positions * layer.fan[0], positions * layer.fan[1]
        noise = torch.randn(fan_in, layer.fan[1], generator=generator)
        bias_noise = torch.randn(layer.fan[1], generator=generator)
        if recipe.w_init == "orthogonal":
            q, r = torch.linalg.qr(noise if fan_in >= layer.fan[1] else noise.T)
            q = q * r.diagonal().sign()
            value = q if fan_in >= layer.fan[1] else q.T
        elif recipe.w_init == "TruncatedNormal":
            low, high = torch.special.ndtr(torch.tensor([-2.0, 2.0]))
            value = torch.special.ndtri(low + (high - low) * torch.special.ndtr(noise)) * recipe.init_std
        else:
            std = {
                "glorot_normal": math.sqrt(2 / (fan_in + fan_out)),
                "he_normal": math.sqrt(2 / fan_in),
                "RandomNormal": recipe.init_std,
            }[recipe.w_init]
            value = noise * std
        row[kernel.start : kernel.end] = value.flatten()
        if layer.bias is not None and recipe.b_init == "RandomNormal":
            row[layer.bias.start : layer.bias.end] = bias_noise * recipe.init_std
    return row


class Plan:
    """What one network draws at random: its first weights, its images, their order and its dropout masks."""

    def __init__(self, recipe: Recipe, layout: Layout, images: int, batch: int, units: int) -> None:
        generator = torch.Generator().manual_seed(recipe.random_seed)
        self.weights = initial_weights(recipe, layout, generator)
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
        self, recipes: Sequence[Recipe], layout: Layout, images: int, batch: int, units: int, device: torch.device
    ) -> None:
        plans = [Plan(recipe, layout, images, batch, units) for recipe in recipes]
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
