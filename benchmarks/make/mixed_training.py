"""Training many networks of one architecture at once, each with its own images and hyperparameters.

The forward pass is the architecture's own module under ``vmap``: convolutions of different networks become one grouped
convolution, linear layers one batched product. Running statistics of batch norms move along with every network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.tools.predictors.architectures import Architecture

from .plans import Schedule, initial_parameters
from .recipes import Recipe

__all__ = ["train_group"]

EVALUATED = 256  # test images at once: bounds the memory


class _Optimizers:
    """Adam, RMSprop and SGD with Keras' defaults, one per row: ``w -= rate c mean / (sqrt(square) + 1e-7)``.

    RMSprop's mean has no memory; SGD has none either, and its square stays 1.
    """

    def __init__(self, recipes: Sequence[Recipe], weights: Tensor) -> None:
        def column(adam: float, rmsprop: float, sgd: float) -> Tensor:
            values = {"adam": adam, "rmsprop": rmsprop, "sgd": sgd}
            return torch.tensor([[values[r.optimizer]] for r in recipes], device=weights.device)

        self.weights = weights
        self.rate = torch.tensor([[r.learning_rate] for r in recipes], device=weights.device)
        self.forget, self.corrected = column(0.1, 1.0, 1.0), column(1.0, 0.0, 0.0)
        self.decay, self.news = column(0.999, 0.9, 1.0), column(0.001, 0.1, 0.0)
        self.mean = torch.zeros_like(weights)
        self.square = column(0.0, 0.0, 1.0).expand_as(weights).clone()

    def step(self, grad: Tensor, number: int) -> None:
        """Update the first ``len(grad)`` networks; ``number`` counts from 1."""
        n = len(grad)
        mean, square, corrected = self.mean[:n], self.square[:n], self.corrected[:n]
        mean.lerp_(grad, self.forget[:n].expand_as(grad))
        square.mul_(self.decay[:n]).addcmul_(grad * self.news[:n], grad)
        correction = math.sqrt(1 - 0.999**number) / (1 - 0.9**number) * corrected + (1 - corrected)
        self.weights[:n].addcdiv_(mean * (self.rate[:n] * correction), square.sqrt().add_(1e-7), value=-1)


def train_group(
    recipes: Sequence[Recipe],
    images: Images,
    architecture: Architecture,
    *,
    batch: int = 32,
    check: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Train one network per recipe; of the recipe's fields all but activation and dropout count.

    Args:
        recipes: N of them.
        images: on the device of training.
        architecture: of all the networks.
        batch: images per step.
        check: called before every step; what it raises ends the training.

    Returns:
        Parameter of the weight space (running statistics too) -> ``(N, *shape)`` on the CPU, and test accuracies
        ``(N,)``.
    """
    model = architecture.sized().train()  # it lends its structure, never its numbers
    train_x, train_y = images.x[images.train], images.y[images.train]
    device = images.x.device
    schedule = Schedule(recipes, partial(initial_parameters, module=model), len(train_y), batch, 0, device)

    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    kernels = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    # The gradient of the penalty is 2 l2reg w, on kernels only.
    penalty = torch.tensor([[2 * r.l2reg] for r in schedule.recipes])
    penalised = [penalty * (name in kernels) * torch.ones(s.numel()) for name, s in shapes.items()]
    decay = torch.cat(penalised, 1).to(device)
    weights = schedule.weights
    moving = _first_statistics(model, len(recipes), device)
    optimizers = _Optimizers(schedule.recipes, weights)

    def networks(rows: Tensor) -> dict[str, Tensor]:
        parts = torch.split(rows, [shape.numel() for shape in shapes.values()], 1)
        own = {name: part.view(-1, *s) for (name, s), part in zip(shapes.items(), parts, strict=True)}
        return own | {name: value[: len(rows)] for name, value in moving.items()}

    for n, steps in schedule.stretches():
        for t in steps:
            check()
            chosen = schedule.order[t, :n].long()
            leaf = weights[:n].detach().requires_grad_()
            logits = _logits(model, networks(leaf), train_x[chosen], 0)
            loss = F.cross_entropy(logits.flatten(0, 1), train_y[chosen].flatten(), reduction="sum") / batch
            (grad,) = torch.autograd.grad(loss, leaf)
            optimizers.step(grad.addcmul_(weights[:n], decay[:n]), t + 1)

    trained, back = networks(weights), schedule.back
    accuracy = _accuracy(model.eval(), trained, images).cpu()[back]
    return {own: trained[name].cpu()[back] for own, name in architecture.names.items()}, accuracy


def _first_statistics(model: nn.Module, count: int, device: torch.device) -> dict[str, Tensor]:
    """Running means and variances before training, ``(count, *shape)``."""
    return {
        name: torch.full((count, *value.shape), float(name.endswith("running_var")), device=device)
        for name, value in model.named_buffers()
        if value.is_floating_point()
    }


def _logits(model: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, image_dim: int | None) -> Tensor:
    """``(N, b, classes)``; images ``(b, C, H, W)`` for all networks (None), or ``(N, b, C, H, W)`` (0)."""

    def run(own: dict[str, Tensor], images: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, own, (images,))
        return out

    out: Tensor = torch.func.vmap(run, in_dims=(0, image_dim))(dict(parameters), x)
    return out


@torch.no_grad()
def _accuracy(model: nn.Module, parameters: Mapping[str, Tensor], images: Images) -> Tensor:
    """Share of the test images that each network gets right, ``(N,)``."""
    parts = torch.split(images.test, EVALUATED)
    right = [(_logits(model, parameters, images.x[i], None).argmax(-1) == images.y[i]).sum(1) for i in parts]
    return torch.stack(right).sum(0) / len(images.test)
