"""Train many low-rank adapters of one frozen network at once, each on images, for a time and with noise of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.tools.predictors.architectures import PlainCNN

from .config import Hyperparameters
from .training import Optimizers, train_group

__all__ = ["DATA_SETS", "Adapted", "AdapterPlan", "draw_adapters", "train_adapters", "train_base", "views"]

RANK = 8
DATA_SETS = (
    "quarter turn", "half turn", "other quarter turn", "mirrored", "transposed", "inverted", "shuffled", "shuffled too",
)  # fmt: skip
BATCH = 32
TESTED = 100  # networks at once: bounds the memory


class Adapted(nn.Module):
    """An MLP with frozen weights, and an adapter of each layer: ``x -> (W + U D) x + b``.

    ``down.i`` are the matrices ``D`` ``(rank, inputs)``, ``up.i`` the ``U`` ``(outputs, rank)``. An adapter of lower
    rank is one of this rank with zeros.
    """

    def __init__(self, base: Sequence[tuple[Tensor, Tensor]], rank: int = RANK) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(weight.shape[1], len(weight)) for weight, _ in base)
        for layer, (weight, bias) in zip(self.layers, base, strict=True):
            layer.load_state_dict({"weight": weight, "bias": bias})
        self.layers.requires_grad_(False)
        self.down = nn.ParameterList(torch.zeros(rank, weight.shape[1]) for weight, _ in base)
        self.up = nn.ParameterList(torch.zeros(len(weight), rank) for weight, _ in base)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i, (layer, down, up) in enumerate(zip(self.layers, self.down, self.up, strict=True)):
            x = F.gelu(x) if i else x
            x = layer(x) + F.linear(F.linear(x, down), up)
        return x


@dataclass(frozen=True)
class AdapterPlan:
    """How one adapter is trained: on which of `DATA_SETS`, and with a share of wrong labels."""

    data_set: int
    rank: int
    noise: float
    learning_rate: float
    steps: int


def draw_adapters(count: int, steps: tuple[int, int], seed: int) -> list[AdapterPlan]:
    """Plans of all adapters: data sets in turn, the others at random; rates and numbers of steps are log-uniform."""
    rng = random.Random(f"{seed}/adapters")

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    return [
        AdapterPlan(
            i % len(DATA_SETS), rng.randint(1, RANK), rng.uniform(0, 0.6), between(1e-3, 2e-2), round(between(*steps))
        )
        for i in range(count)
    ]


def train_base(images: Images, width: int, epochs: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of an MLP with two hidden layers, trained on the images as they are."""
    recipe = Hyperparameters("adam", 3e-3, 1e-5, 0.0, 1.0, epochs, "he_normal", 0.0, "zeros", seed)
    whole = (images.size,)  # the first layer is a convolution whose kernel is the image
    architecture = PlainCNN((1, width), whole, (1,), (0,), (width, images.classes), ("gelu", "gelu"))
    found, _ = train_group([recipe], images, architecture)
    return [(found[f"weight.{i}"][0].flatten(1), found[f"bias.{i}"][0]) for i in range(3)]


def views(x: Tensor, seed: int) -> Tensor:
    """Images ``(n, 1, H, W)`` as all `DATA_SETS` have them, ``(sets, n, 1, H, W)``."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = [x.flatten(1)[:, torch.randperm(x[0].numel(), generator=generator)].view_as(x) for _ in range(2)]
    turned = [x.rot90(k, (2, 3)) for k in (1, 2, 3)]
    return torch.stack([*turned, x.flip(3), x.transpose(2, 3), -x, *shuffled])


def train_adapters(
    plans: Sequence[AdapterPlan], module: Adapted, images: Images, seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Train an adapter for each of N plans.

    Entries beyond an adapter's rank are 0 at first, and have no gradient.

    Returns:
        Parameter -> ``(N, *shape)``, and accuracies ``(N,)`` on the test images of its own data set.
    """
    generator = torch.Generator().manual_seed(seed)
    order = sorted(range(len(plans)), key=lambda i: -plans[i].steps)  # those that still run are always the first
    plans, back = [plans[i] for i in order], torch.tensor(order).argsort()
    data_set, rank = (torch.tensor([getattr(plan, name) for plan in plans]) for name in ("data_set", "rank"))
    shown = views(images.x, seed)
    labels = images.y[images.train].expand(len(plans), -1)
    wrong = torch.rand(labels.shape, generator=generator) < torch.tensor([[plan.noise] for plan in plans])
    labels = torch.where(wrong, torch.randint(images.classes, labels.shape, generator=generator), labels)

    shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
    own = torch.arange(module.down[0].shape[0]) < rank[:, None]
    first = [
        torch.randn(len(plans), *shape, generator=generator) * own[..., None] / shape[1] ** 0.5
        if name.startswith("down") else torch.zeros(len(plans), *shape)
        for name, shape in shapes.items()
    ]  # fmt: skip
    weights = torch.cat([x.flatten(1) for x in first], 1)
    optimizers = Optimizers(weights, ["adam"] * len(plans), [plan.learning_rate for plan in plans])

    def networks(rows: Tensor) -> dict[str, Tensor]:
        parts = torch.split(rows, [shape.numel() for shape in shapes.values()], 1)
        return {name: part.reshape(-1, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    for step in range(plans[0].steps):
        n = sum(plan.steps > step for plan in plans)
        chosen = torch.randint(len(images.train), (n, BATCH), generator=generator)
        leaf = weights[:n].detach().requires_grad_()
        logits = _logits(module, networks(leaf), shown[data_set[:n, None], images.train[chosen]])
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:n].gather(1, chosen).flatten(), reduction="sum") / BATCH
        optimizers.step(torch.autograd.grad(loss, leaf)[0], step + 1)

    with torch.no_grad():
        right = [
            _logits(module, networks(weights[part]), shown[data_set[part, None], images.test]).argmax(-1)
            for part in torch.split(torch.arange(len(plans)), TESTED)
        ]
    accuracy = (torch.cat(right) == images.y[images.test]).float().mean(1)
    return {name: x[back].clone() for name, x in networks(weights).items()}, accuracy[back]


def _logits(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """``(N, b, classes)`` of networks on images of their own, ``(N, b, 1, H, W)``."""
    out: Tensor = torch.func.vmap(lambda own, images: torch.func.functional_call(module, own, (images,)))(
        dict(parameters), x
    )
    return out
