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

from nfn_monomial.checks import Share, checked, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.running import called_with, evaluating, inputs_of, running


@checked
def mean_of(networks: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Returns the weighted mean of several networks, running statistics included.

    Args:
        networks: parameter or buffer -> tensor; all of the same names, shapes and dtypes.
        weights: one for each network; equal ones by default.

    Returns:
        New tensors; those that are not floating point, such as counters of batches, are the first network's.

    Raises:
        ValueError: if names, shapes or numbers do not fit, naming what differs.
    """
    if not networks:
        raise InvalidValueError("mean_of: at least one network is needed, found none")
    shares = [1 / len(networks)] * len(networks) if weights is None else list(weights)
    if len(shares) != len(networks) or not all(map(math.isfinite, shares)):
        raise InvalidValueError(f"mean_of: {len(networks)} networks need as many finite weights, found {shares}")
    for other in networks[1:]:
        _require_alike(networks[0], other)
    mean = {}
    for name, x in networks[0].items():
        parts = (share * network[name] for share, network in zip(shares, networks, strict=True))
        mean[name] = sum(parts, torch.zeros_like(x)) if x.is_floating_point() else x.clone()
    return mean


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
    """Returns the network ``(1 - t) a + t b`` on the line between two, running statistics included.

    Args:
        a: parameter or buffer -> tensor.
        b: the same names, shapes and dtypes.
        t: 0 (all of ``a``) to 1 (all of ``b``).

    Returns:
        New tensors; those that are not floating point are those of ``a``.

    Raises:
        ValueError: if ``t`` is outside, or as `mean_of`.

    >>> interpolate({"w": torch.tensor([0.0, 8.0])}, {"w": torch.tensor([4.0, 0.0])}, 0.25)
    {'w': tensor([1., 6.])}
    """
    return mean_of((a, b), (1 - t, t))


@checked
def barrier(losses: Sequence[float] | Tensor) -> float:
    """Returns how far the loss rises above the chord: ``max_t loss(t) - ((1 - t) loss(0) + t loss(1))``.

    The definition of Ainsworth et al. 2022 (Git Re-Basin), Sec. 2; Frankle et al. 2020 take the mean of the two ends
    in place of the chord, which is the same where they are equal. At t = 0 and 1 it is 0, so it is never negative.

    Args:
        losses: at evenly spaced t, both ends included, ``(n,)`` with n >= 2; `mean_measures` of `interpolate`.

    Raises:
        ValueError: for fewer than two, or a loss that is NaN or, at an end, infinite.

    >>> barrier([1.0, 4.0, 3.0])
    2.0
    """
    if isinstance(losses, Tensor) and (losses.is_complex() or losses.is_meta):
        raise InvalidTypeError(f"barrier: losses must be real numbers, found {shown(losses)}")
    values = torch.as_tensor(losses, dtype=torch.float64)
    fits = values.ndim == 1 and len(values) >= 2
    if not fits or bool(values.isnan().any()) or not bool(values[[0, -1]].isfinite().all()):
        raise InvalidValueError(
            f"barrier: losses must be two numbers or more, finite at both ends, found {values.tolist()}"
        )
    t = torch.linspace(0, 1, len(values), dtype=torch.float64)
    above = values - torch.lerp(values[0], values[-1], t)
    return max(0.0, float(above.max()))


@checked
@torch.no_grad()
def mean_measures(
    module: nn.Module,
    networks: Sequence[Mapping[str, Tensor]],
    batches: Iterable[tuple[Any, Tensor]],
    measure: Callable[[Any, Tensor], Tensor],
) -> Tensor:
    """Measures several networks on the same data, which is read once: their losses for `barrier`, as an example.

    Args:
        module: runs in eval mode, with tensors of its own where a network does not name them.
        networks: K of them, parameter or buffer -> tensor.
        batches: pairs of inputs (a tensor, or a tuple of all positional arguments) and targets ``(n, ...)``.
        measure: outputs and targets -> a mean over the n samples, ``()`` or ``(k,)``.

    Returns:
        Means over all samples, float64 ``(K,)`` or ``(K, k)``.

    Raises:
        ValueError: if there is no data.
    """
    if not networks:
        raise InvalidValueError("mean_measures: at least one network is needed, found none")
    sums, count = [], 0
    with evaluating(module), running(module, "the batches"):
        for inputs, targets in batches:
            measured = [measure(called_with(module, network, inputs_of(inputs)), targets) for network in networks]
            sums.append(torch.stack(measured).to("cpu", torch.float64) * len(targets))
            count += len(targets)
    if not count:
        raise InvalidValueError("there are no batches to measure on: a generator can be read once only; give a list")
    return torch.stack(sums).sum(0) / count
