"""The straight line between two networks, and how much worse the networks on it are: linear mode connectivity.

Two trained networks whose line has no barrier lie in one basin, and their mean is a network as good as they are
(Frankle et al. 2020). Networks trained on their own have one, most of which may come from neurons in another order
(Ainsworth et al. 2022); so one of them is moved into the frame of the other first, see `align`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, Share, checked
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space.certificate import evaluating, inputs_of, running

Batches = Iterable[tuple[Any, Tensor]]
"""Pairs of inputs (a tensor, or a tuple of all positional arguments) and targets ``(n, ...)``."""
Measure = Callable[[Any, Tensor], Tensor]
"""Outputs and targets -> a mean over the n samples, ``()`` or ``(k,)``."""


@checked
def mean_of(networks: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """The weighted mean of several networks, running statistics included.

    Args:
        networks: parameter or buffer -> tensor; all of the same names, shapes and dtypes.
        weights: one for each network; equal ones by default.

    Returns:
        New tensors; what is not floating point, as counters of batches, is that of the first network.

    Raises:
        ValueError: if names, shapes or numbers do not fit, naming what differs.
    """
    if not networks:
        raise InvalidValueError("mean_of: at least one network is needed, found none")
    shares = [1 / len(networks)] * len(networks) if weights is None else list(weights)
    if len(shares) != len(networks) or not all(map(math.isfinite, shares)):
        raise InvalidValueError(f"mean_of: {len(networks)} networks need as many finite weights, found {shares}")
    first, *others = networks
    for other in others:
        _require_alike(first, other)
    return {name: _mean([network[name] for network in networks], shares) for name in first}


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    total = tensors[0].clone()
    if not total.is_floating_point():
        return total
    total *= shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total += share * tensor
    return total


def _require_alike(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    if unmatched := sorted(a.keys() ^ b.keys()):
        raise InvalidValueError(
            f"one network has {', '.join(unmatched[:3])}, the other has not: both must be of one architecture"
        )
    for name, x in a.items():
        if x.shape != b[name].shape or x.dtype != b[name].dtype:
            raise InvalidValueError(
                f"{name} is {tuple(x.shape)} {x.dtype} in one network and {tuple(b[name].shape)} {b[name].dtype} in "
                "the other: both must be of one architecture and dtype"
            )


@checked
def interpolate(a: Mapping[str, Tensor], b: Mapping[str, Tensor], t: Share) -> dict[str, Tensor]:
    """The network ``(1 - t) a + t b`` on the line between two, running statistics included.

    Args:
        a: parameter or buffer -> tensor.
        b: the same names, shapes and dtypes.
        t: 0 (all of ``a``) to 1 (all of ``b``).

    Returns:
        New tensors; what is not floating point is that of ``a``.

    Raises:
        ValueError: if ``t`` is outside, or as `mean_of`.

    >>> interpolate({"w": torch.tensor([0.0, 8.0])}, {"w": torch.tensor([4.0, 0.0])}, 0.25)
    {'w': tensor([1., 6.])}
    """
    return mean_of((a, b), (1 - t, t))


@checked
def barrier(losses: Sequence[float] | Tensor) -> float:
    """How far the loss rises above the chord: ``max_t loss(t) - ((1 - t) loss(0) + t loss(1))``.

    The definition of Ainsworth et al. 2022 (Git Re-Basin), Sec. 2; Frankle et al. 2020 take the mean of the two ends
    in place of the chord, which is the same where they are equal. At t = 0 and 1 it is 0, so it is never negative.

    Args:
        losses: at evenly spaced t, both ends included, ``(n,)`` with n >= 2; of `loss_along`.

    Raises:
        ValueError: for fewer than two, or a loss that is NaN or, at an end, infinite.

    >>> barrier([1.0, 4.0, 3.0])
    2.0
    """
    if isinstance(losses, Tensor) and losses.is_complex():
        raise InvalidTypeError(f"barrier: losses are {losses.dtype}, expected real numbers")
    values = torch.as_tensor(losses, dtype=torch.float64)
    if values.ndim != 1 or len(values) < 2:
        raise InvalidValueError(f"barrier: losses have shape {tuple(values.shape)}, expected (n,) with both ends of it")
    if bool(values.isnan().any()) or not bool(values[[0, -1]].isfinite().all()):
        raise InvalidValueError(f"barrier: losses must be numbers, finite at both ends, found {values.tolist()}")
    t = torch.linspace(0, 1, len(values), dtype=torch.float64)
    above = values - torch.lerp(values[0], values[-1], t)
    return max(0.0, float(above.max()))


@checked
@torch.no_grad()
def mean_measures(
    module: nn.Module, networks: Sequence[Mapping[str, Tensor]], batches: Batches, measure: Measure
) -> Tensor:
    """A measure of several networks on the same data, which is read once.

    Args:
        module: what runs, in eval mode; what a network does not name is the module's own.
        networks: K of them, parameter or buffer -> tensor.
        batches: see `Batches`.
        measure: see `Measure`; batches count by their number of samples.

    Returns:
        Float64 ``(K,)`` or ``(K, k)``.

    Raises:
        ValueError: if there is no data.
    """
    total: Tensor | None = None
    count = 0
    if not networks:
        raise InvalidValueError("mean_measures: at least one network is needed, found none")
    with evaluating(module), running(module, "the batches"):
        for inputs, targets in batches:
            measured = [
                measure(torch.func.functional_call(module, dict(network), inputs_of(inputs)), targets)
                for network in networks
            ]
            part = torch.stack(measured).to("cpu", torch.float64) * len(targets)
            total, count = part if total is None else total + part, count + len(targets)
    if total is None or not count:
        raise InvalidValueError("there are no batches to measure on: a generator can be read once only; give a list")
    return total / count


@checked
def loss_along(
    module: nn.Module,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    batches: Batches,
    points: Count = 11,
    *,
    loss: Measure = nn.functional.cross_entropy,
) -> Tensor:
    """The loss of the networks on the line from ``a`` to ``b``, for `barrier`.

    Args:
        module: what runs, in eval mode.
        a: the network at t = 0, parameter or buffer -> tensor.
        b: the network at t = 1.
        batches: pairs of inputs (a tensor, or a tuple of all positional arguments) and targets.
        points: how many, evenly spaced, both ends included.
        loss: outputs and targets -> mean over the batch.

    Returns:
        Float64 ``(points,)``.

    Raises:
        ValueError: for fewer than two points, without data, or as `interpolate`.
    """
    if points < 2:
        raise InvalidValueError(f"loss_along: points is {points}, at least the 2 ends are needed")
    line = [interpolate(a, b, t) for t in torch.linspace(0, 1, points, dtype=torch.float64).tolist()]
    return mean_measures(module, line, batches, loss)
