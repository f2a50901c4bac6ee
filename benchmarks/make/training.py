"""Training many networks of one architecture at once, each with its own images and hyperparameters.

Networks that are chains of modules run side by side in grouped convolutions and batched products. The forward pass of
others is their own module under ``vmap``, which makes the same of it, more slowly. Running statistics of batch norms
move along with every network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.tools.predictors.architectures import Architecture

from .config import Hyperparameters, Optimizer, TrainingRanges, redraw

__all__ = ["Optimizers", "TrainingDraws", "initial_parameters", "train_bounded", "train_group"]

EVALUATED = 32  # test images at once: more do not fit into caches, and take three times as long
ATTEMPTS = 5  # per network, before a zoo whose networks keep diverging is given up
LARGEST_WEIGHT = 1e3  # beyond this a network counts as diverged though its weights are finite


class Optimizers:
    """Adam, RMSprop and SGD with Keras' defaults, one per row: ``w -= rate c mean / (sqrt(square) + eps)``.

    RMSprop's mean has no memory; SGD has none either, and its square stays 1.
    """

    def __init__(
        self, weights: Tensor, kinds: Sequence[Optimizer], rates: Sequence[float], eps: float = 1e-7
    ) -> None:  # fmt: skip
        def column(adam: float, rmsprop: float, sgd: float) -> Tensor:
            values = {"adam": adam, "rmsprop": rmsprop, "sgd": sgd}
            return torch.tensor([[values[kind]] for kind in kinds], device=weights.device)

        self.weights, self.eps = weights, eps
        self.rate = torch.tensor([[rate] for rate in rates], device=weights.device)
        self.forget, self.corrected = column(0.1, 1.0, 1.0), column(1.0, 0.0, 0.0)
        self.decay, self.news = column(0.999, 0.9, 1.0), column(0.001, 0.1, 0.0)
        self.mean = torch.zeros_like(weights)
        self.square = column(0.0, 0.0, 1.0).expand_as(weights).clone()

    def step(self, grad: Tensor, number: int, share: float = 1.0) -> None:
        """Updates the first ``len(grad)`` networks, by that share of the rates; ``number`` counts from 1."""
        n = len(grad)
        mean, square, corrected = self.mean[:n], self.square[:n], self.corrected[:n]
        mean.lerp_(grad, self.forget[:n].expand_as(grad))
        square.mul_(self.decay[:n]).addcmul_(grad * self.news[:n], grad)
        correction = math.sqrt(1 - 0.999**number) / (1 - 0.9**number) * corrected + (1 - corrected)
        self.weights[:n].addcdiv_(mean * (self.rate[:n] * correction), square.sqrt().add_(self.eps), value=-share)


def initial_parameters(drawn: Hyperparameters, generator: torch.Generator, module: nn.Module) -> Tensor:
    """All parameters of a module in one row, ``(columns,)``, before training.

    Fans count the kernel's positions, as Keras does. Gains of norms are 1, their shifts 0; parameters of no layer, such
    as positions, are normal with the drawn standard deviation.
    """
    parts = []
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                if name == "weight":
                    rows, columns, *kernel = parameter.shape
                    value, bias = _drawn(drawn, math.prod(kernel), columns, rows, generator)
                    value = value.view(*kernel, columns, rows).movedim((-1, -2), (0, 1))
                else:
                    value = bias
            elif isinstance(layer, (nn.BatchNorm2d, nn.LayerNorm)):
                value = torch.full(parameter.shape, float(name == "weight"))
            else:
                value = torch.randn(parameter.shape, generator=generator) * drawn.init_std
            parts.append(value.flatten())
    return torch.cat(parts)


def _drawn(
    drawn: Hyperparameters, positions: int, inputs: int, outputs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A layer's kernel ``(positions * inputs, outputs)`` and bias ``(outputs,)``."""
    fan_in, fan_out = positions * inputs, positions * outputs
    noise = torch.randn(fan_in, outputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) * (drawn.init_std if drawn.b_init == "RandomNormal" else 0.0)
    if drawn.w_init == "orthogonal":
        q, r = torch.linalg.qr(noise if fan_in >= outputs else noise.T)
        q = q * r.diagonal().sign()
        return (q if fan_in >= outputs else q.T), bias
    if drawn.w_init == "TruncatedNormal":
        low, high = torch.special.ndtr(torch.tensor([-2.0, 2.0]))
        return torch.special.ndtri(low + (high - low) * torch.special.ndtr(noise)) * drawn.init_std, bias
    std = {
        "glorot_normal": math.sqrt(2 / (fan_in + fan_out)),
        "he_normal": math.sqrt(2 / fan_in),
        "RandomNormal": drawn.init_std,
    }[drawn.w_init]
    return noise * std, bias


class TrainingDraws:
    """The random draws of one network: its first weights, its images, their order and its dropout masks."""

    def __init__(self, drawn: Hyperparameters, module: nn.Module, images: int, batch: int, units: int = 0) -> None:
        generator = torch.Generator().manual_seed(drawn.random_seed)
        self.weights = initial_parameters(drawn, generator, module)
        count = max(1, round(drawn.train_fraction * images))
        self.subset = torch.randperm(images, generator=generator)[:count]
        self.steps = max(1, drawn.epochs * count // batch)
        rounds = math.ceil(self.steps * batch / count)
        stream = torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])
        self.order = self.subset[stream[: self.steps * batch]].to(torch.int32)
        # Twice the masks that a step needs; each step reads them from another offset.
        keep = torch.rand(2 * units, generator=generator) >= drawn.dropout
        self.masks = keep / (1 - drawn.dropout)


def _mask_shapes(model: nn.Module, images: Tensor) -> dict[str, torch.Size]:
    """Returns names and shapes ``(b, ...)`` of the outputs to mask: activations after convolutions, in a chain.

    ``images``: of the shape of a batch, on the meta device.
    """
    shapes: dict[str, torch.Size] = {}
    x, after_convolution = images, False
    for name, layer in model.named_children():
        x = layer(x)
        if after_convolution:
            shapes[name] = x.shape
        after_convolution = isinstance(layer, nn.Conv2d)
    return shapes


def _cut(masks: Tensor, shapes: Mapping[str, torch.Size], offset: int) -> Iterator[tuple[str, Tensor]]:
    """Cuts masks ``(b, n * channels, ...)`` out of rows, which have channels last, from an offset on."""
    for name, (b, channels, *size) in shapes.items():
        end = offset + b * channels * math.prod(size)
        yield name, masks[:, offset:end].view(-1, b, *size, channels).movedim(0, -2).flatten(-2).movedim(-1, 1)
        offset = end


def train_group(
    drawn: Sequence[Hyperparameters],
    images: Images,
    architecture: Architecture,
    *,
    batch: int = 32,
    check: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Trains one network for each of N hyperparameters. Those that need fewer steps stop earlier.

    Args:
        drawn: dropout in all of them, and then the architecture is a plain CNN, or in none.
        images: on the device of training.
        architecture: of all the networks.
        batch: images per step.
        check: called before every step; an error in it ends the training.

    Returns:
        Parameter of the weight space (running statistics too) -> ``(N, *shape)`` on the CPU, and test accuracies
        ``(N,)``.
    """
    model = architecture.sized().train()  # it lends its structure, never its numbers
    train_x, train_y = images.x[images.train], images.y[images.train]
    device = images.x.device
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    kernels = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    sample = torch.empty(batch, *images.x.shape[1:], device="meta")
    masked = _mask_shapes(model, sample) if drawn[0].dropout else {}
    units = sum(shape.numel() for shape in masked.values())

    plans = [TrainingDraws(one, model, len(train_y), batch, units) for one in drawn]
    # The longest first, so that those still running are always the first.
    rank = sorted(range(len(plans)), key=lambda i: -plans[i].steps)
    back = torch.tensor(rank).argsort()
    plans, drawn = [plans[i] for i in rank], [drawn[i] for i in rank]
    weights = torch.stack([plan.weights for plan in plans]).to(device)
    masks = torch.stack([plan.masks for plan in plans]).to(device)
    order = pad_sequence([plan.order.view(-1, batch) for plan in plans]).to(device)  # (steps, n, batch)

    # The gradient of the penalty is 2 l2reg w, on kernels only.
    penalty = torch.tensor([[2 * one.l2reg] for one in drawn])
    penalised = [penalty * (name in kernels) * torch.ones(s.numel()) for name, s in shapes.items()]
    decay = torch.cat(penalised, 1).to(device)
    # Running means and variances before training.
    moving = {
        name: torch.full((len(drawn), *value.shape), float(name.endswith("running_var")), device=device)
        for name, value in model.named_buffers()
        if value.is_floating_point()
    }
    optimizers = Optimizers(weights, [one.optimizer for one in drawn], [one.learning_rate for one in drawn])

    def networks(rows: Tensor) -> dict[str, Tensor]:
        parts = torch.split(rows, [shape.numel() for shape in shapes.values()], 1)
        split = {name: part.view(-1, *s) for (name, s), part in zip(shapes.items(), parts, strict=True)}
        return split | {name: value[: len(rows)] for name, value in moving.items()}

    for t in range(plans[0].steps):
        check()
        n = sum(plan.steps > t for plan in plans)
        chosen = order[t, :n].long()
        leaf = weights[:n].detach().requires_grad_()
        dropped = dict(_cut(masks[:n], masked, t * 7919 % max(1, units)))
        logits = _logits(model, networks(leaf), train_x[chosen], dropped)
        loss = F.cross_entropy(logits.flatten(0, 1), train_y[chosen].flatten(), reduction="sum") / batch
        (grad,) = torch.autograd.grad(loss, leaf)
        optimizers.step(grad.addcmul_(weights[:n], decay[:n]), t + 1)

    trained = networks(weights)
    model.eval()
    with torch.no_grad():
        tested = torch.split(images.test, EVALUATED)
        right = [(_logits(model, trained, images.x[i], {}).argmax(-1) == images.y[i]).sum(1) for i in tested]
        accuracy = (torch.stack(right).sum(0) / len(images.test)).cpu()[back]
    return {name: trained[full].cpu()[back] for name, full in architecture.names.items()}, accuracy


def _logits(
    model: nn.Module, parameters: Mapping[str, Tensor], images: Tensor, masks: Mapping[str, Tensor]
) -> Tensor:  # fmt: skip
    """Returns ``(N, b, classes)``; images ``(b, C, H, W)`` for all networks, or ``(N, b, C, H, W)``.

    In a chain of modules, channels of all networks are side by side, ``(b, N * channels, ...)``, up to linear layers;
    only there may outputs be masked.
    """
    if not isinstance(model, nn.Sequential):

        def run(state: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(model, state, (x,))
            return out

        out: Tensor = torch.func.vmap(run, in_dims=(0, 0 if images.ndim == 5 else None))(dict(parameters), images)
        return out
    # Grouped convolutions on CPUs are twice to five times as fast with channels last.
    layout = torch.channels_last if images.device.type == "cpu" else torch.contiguous_format
    x = images if images.ndim == 4 else images.transpose(0, 1).flatten(1, 2)
    x = x.contiguous(memory_format=layout)
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d):
            weight, bias = (parameters[f"{name}.{part}"].flatten(0, 1) for part in ("weight", "bias"))
            groups = x.shape[1] // layer.in_channels  # the first may have the same images for all networks
            x = F.conv2d(x, weight, bias, layer.stride, layer.padding, groups=groups)
        elif isinstance(layer, nn.Linear):
            weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
            x = x if x.ndim == 3 else x.reshape(len(x), len(weight), -1).transpose(0, 1)
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        else:
            x = layer(x)
        x = x * masks[name] if name in masks else x
    return x


def train_bounded(
    config: TrainingRanges,
    numbers: Sequence[int],
    drawn: Sequence[Hyperparameters],
    run: Callable[[list[Hyperparameters]], tuple[dict[str, Tensor], Tensor]],
) -> tuple[dict[str, Tensor], Tensor, list[Hyperparameters], int]:
    """Trains networks until all are bounded: those that diverge are drawn again.

    Args:
        config: the ranges to draw from.
        numbers: of the n networks in the zoo.
        drawn: their hyperparameters at first.
        run: trains networks; weights ``(n, *shape)`` and accuracies ``(n,)``.

    Returns:
        Weights, accuracies, the hyperparameters in the end, and how many networks diverged on the way.

    Raises:
        CorpusError: if a network diverges too often.
    """
    chosen = list(drawn)
    weights, accuracy = run(chosen)
    diverged = attempt = 0
    while True:
        bounded = torch.stack([(t.abs() <= LARGEST_WEIGHT).flatten(1).all(1) for t in weights.values()]).all(0)
        bad = (~bounded).nonzero().flatten().tolist()  # an entry is too large, or NaN
        if not bad:
            return weights, accuracy, chosen, diverged
        diverged, attempt = diverged + len(bad), attempt + 1
        if attempt > ATTEMPTS:
            raise CorpusError(
                f"network {numbers[bad[0]]} diverged {attempt} times: choose smaller learning rates than "
                f"{config.learning_rate} and, for sgd, {config.sgd_learning_rate}"
            )
        for i in bad:
            chosen[i] = redraw(config, numbers[i], attempt, chosen[i])
        again, accuracy[bad] = run([chosen[i] for i in bad])
        for name, values in again.items():
            weights[name][bad] = values
