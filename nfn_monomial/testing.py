"""Checks for anybody's layers: equivariance, invariance, and that the group really preserves a network's function.

Each check draws group elements that are never the identity (log-normal scales, both signs, a real permutation),
compares after pulling back, ``g^{-1} f(g x)`` with ``f(x)``, and measures relative to each tensor's largest entry, so
that float64 holds correct layers to rounding error whatever the scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nfn_monomial.checks import AtLeastZero, Count, Floating, Seed, Size, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, largest_change, relative_error
from nfn_monomial.space.axes import field_name
from nfn_monomial.space.features import Features, Layout
from nfn_monomial.space.geometry import layer_tensors
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace


@runtime_checkable
class LayerFeatures(Protocol):
    """Features of a chain of layers as the ``nfn`` package holds them: its ``WeightSpaceFeatures``."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor | None]


_RTOL = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@checked
def random_networks(
    space: WeightSpace,
    batch: Size = 3,
    channels: Count = 1,
    *,
    sizes: Mapping[str, Size] | None = None,
    dtype: Floating = torch.float64,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Standard normal parameters ``(batch, channels, *shape)``; nodes of unknown size get 4 neurons, or ``sizes``."""
    known = _sizes(space, sizes)
    return {
        name: torch.randn(batch, channels, *space.shape_of(name, known), dtype=dtype, generator=generator)
        for name in space.parameters
    }


@checked
def random_element(
    space: WeightSpace,
    batch: Size | None = None,
    *,
    sizes: Mapping[str, Size] | None = None,
    generator: torch.Generator | None = None,
) -> GroupElement:
    """A group element whose every matrix permutes (n > 1), scales by log-normal factors, and has both signs (n > 1)."""
    return space.sample(batch, sizes=_sizes(space, sizes), generator=generator).proper()


@checked
def assert_equivariant(
    layer: Callable[[Any], Any],
    space: WeightSpace,
    *,
    inputs: Features | Mapping[str, Tensor] | LayerFeatures | None = None,
    out_space: WeightSpace | None = None,
    channels: Count | None = None,
    batch: Size = 3,
    trials: Count = 3,
    rtol: AtLeastZero | None = None,
    seed: Seed = 0,
) -> None:
    """Assert that ``layer(g x) = g layer(x)`` for random g of the space's group.

    Args:
        layer: maps `Features` (or a mapping of named tensors, or nfn's ``WeightSpaceFeatures``, if ``inputs`` is one)
            to the same kind of thing.
        space: whose group acts, on input and output.
        inputs: what to try it on; random features of the layer's input layout by default.
        out_space: the space of the output's names, if the layer returns named tensors of another one, such as
            ``space.uncharged()``. Features know it themselves.
        channels: of random inputs; ``layer.in_channels``, ``layer.channels`` or 2 by default.
        batch: networks in a random batch.
        trials: group elements tried, each one batch of different elements.
        rtol: largest error allowed, relative to each output tensor's largest entry: 1e-10 in float64.
        seed: of inputs and elements.

    Raises:
        AssertionError: naming the worst output tensor and its error; or if the output is zero, which proves nothing.
        ValueError: if ``trials`` is less than 1.
    """
    generator = torch.Generator().manual_seed(seed)
    layer, inputs = _of_tensors(layer, inputs)
    x: Any = _random_inputs(layer, space, channels, batch, generator) if inputs is None else inputs
    plain = layer(x)
    expected = _named(plain, space)
    if not any(bool(t.any()) for t in expected.values()):
        raise AssertionError("the layer's output is zero everywhere, which is equivariant but proves nothing")
    first = next(iter(expected.values()))

    def errors() -> dict[str, float]:
        g = random_element(space, len(first), sizes=_seen_sizes(x, space), generator=generator)
        back = GroupElement(out_space or space, g.inverse().matrices)
        found = _named(back.act(layer(g.act(x))), space)
        return {name: relative_error(found[name], t, t.abs().max()) for name, t in expected.items()}

    what = f"not equivariant under the group of {space}: g^-1 f(g x) differs from f(x)"
    require_small(errors, trials, rtol, first.dtype, what)


@checked
def assert_invariant(
    fn: Callable[[Any], Tensor],
    space: WeightSpace,
    *,
    inputs: Features | Mapping[str, Tensor] | LayerFeatures | None = None,
    channels: Count | None = None,
    batch: Size = 4,
    trials: Count = 3,
    rtol: AtLeastZero | None = None,
    seed: Seed = 0,
) -> None:
    """Assert that ``fn(g x) = fn(x)`` for random g; errors are measured against the spread of fn over networks.

    Args:
        fn: maps features (or named tensors, or nfn's ``WeightSpaceFeatures``, if ``inputs`` is of that kind) to a
            tensor ``(B, ...)``.
        space: whose group acts.
        inputs: at least two networks; random ones by default.
        channels: see `assert_equivariant`, as are ``batch``, ``trials`` and ``seed``.
        rtol: largest change allowed, relative to the largest standard deviation over networks.

    Raises:
        AssertionError: with the error; or if the output is the same for all networks, which proves nothing.
        ValueError: if ``trials`` is less than 1.
    """
    generator = torch.Generator().manual_seed(seed)
    fn, inputs = _of_tensors(fn, inputs)
    x: Any = _random_inputs(fn, space, channels, batch, generator) if inputs is None else inputs
    expected = fn(x).detach()
    spread = spread_of(expected)

    def errors() -> dict[str, float]:
        g = random_element(space, len(expected), sizes=_seen_sizes(x, space), generator=generator)
        return {"output": relative_error(fn(g.act(x)).detach(), expected, spread)}

    what = f"not invariant under the group of {space}: f(g x) differs from f(x)"
    require_small(errors, trials, rtol, expected.dtype, what)


@checked
def assert_function_preserved(
    module: nn.Module,
    space: WeightSpace,
    x: Tensor | tuple[Any, ...],
    *,
    trials: Count = 3,
    rtol: AtLeastZero | None = None,
    seed: Seed = 0,
) -> None:
    """Assert that the space's group leaves a real network's function alone (paper Prop. 4.4): f(x; gU) = f(x; U).

    Args:
        module: the network; its parameters have the space's names (`WeightSpace.from_module`). Run in eval mode, after
            which every submodule has its own mode again.
        space: whose group acts on the parameters.
        x: inputs of the network: a tensor, or a tuple of all its arguments.
        trials: group elements tried.
        rtol: largest error allowed relative to the largest output: 1e-10 in float64.
        seed: of the elements.

    Raises:
        AssertionError: with the error.
        ValueError: if the module lacks a parameter of the space, or ``trials`` is less than 1.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = {name: p.detach() for name, p in (*module.named_parameters(), *module.named_buffers())}
    missing = [name for name in space.parameters if name not in parameters]
    if missing:
        raise InvalidValueError(
            f"the module has no parameter {', '.join(missing)}; it has {', '.join(parameters)}. "
            "WeightSpace.from_module gives a space with its names"
        )
    networks = {name: parameters[name][None, None] for name in space.parameters}
    expected = answers(module, parameters, x)

    def errors() -> dict[str, float]:
        g = random_element(space, sizes=_seen_sizes(networks, space), generator=generator)
        return {"output": largest_change(answers(module, g.act(parameters), x), expected)}

    dtype = next((t.dtype for t in expected if t.is_floating_point()), torch.float64)
    require_small(errors, trials, rtol, dtype, f"the group of {space} changes the network's function")


def require_small(
    errors: Callable[[], Mapping[str, float]], trials: int, rtol: float | None, dtype: torch.dtype, what: str
) -> None:
    """Look at errors ``trials`` times, and assert that they stay small: what all checks end with.

    Args:
        errors: draws a group element and returns name of a tensor -> its relative error.
        trials: how often, at least once.
        rtol: largest error allowed; by default what rounding in ``dtype`` explains, 1e-10 in float64.
        dtype: of what is compared.
        what: is wrong where an error is larger.

    Raises:
        AssertionError: naming all tensors whose error is larger, or NaN.
        ValueError: if nothing was to be tried.
    """
    if trials < 1:
        raise InvalidValueError(f"trials must be at least 1, found {trials}: nothing would be checked")
    limit = _RTOL[dtype] if rtol is None else rtol
    for _ in range(trials):
        wrong = {name: error for name, error in errors().items() if not error <= limit}  # NaN is wrong
        if wrong:
            listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
            raise AssertionError(f"{what}: {listed} (relative; {limit:.0e} allowed)")


def spread_of(outputs: Tensor) -> Tensor:
    """The largest standard deviation over networks of ``(B, ...)``, against which changes are measured.

    Raises:
        AssertionError: if the output is the same for all networks.
    """
    spread, largest = outputs.std(0).max(), outputs.abs().max()
    if not float(spread) > 1e-6 * float(largest):
        raise AssertionError(
            f"the output hardly differs between networks (standard deviation {float(spread):.1e}, largest entry "
            f"{float(largest):.1e}): invariance of a constant proves nothing"
        )
    return spread


def _sizes(space: WeightSpace, sizes: Mapping[str, int] | None) -> dict[str, int]:
    return {name: size or 4 for name, size in space.declared(sizes).items()}


def _of_tensors(
    fn: Callable[[Any], Any], inputs: Features | Mapping[str, Tensor] | LayerFeatures | None
) -> tuple[Callable[[Any], Any], Features | Mapping[str, Tensor] | None]:
    """A function of nfn's features as one of named tensors, and its inputs likewise; others as they are."""
    if inputs is None or isinstance(inputs, Features | Mapping):
        return fn, inputs
    kind: Any = type(inputs)
    depth = len(inputs.weights)

    def on_tensors(tensors: Mapping[str, Tensor]) -> Any:
        weights = tuple(tensors[f"weight.{i}"] for i in range(depth))
        output = fn(kind(weights, tuple(tensors.get(f"bias.{i}") for i in range(depth))))
        return layer_tensors(output) if isinstance(output, kind) else output

    return on_tensors, layer_tensors(inputs)


def _seen_sizes(x: Features | Mapping[str, Tensor], space: WeightSpace) -> dict[str, int]:
    return space.node_sizes(x if isinstance(x, Features) else space.pack(x))


def _random_inputs(
    layer: object, space: WeightSpace, channels: int | None, batch: int, generator: torch.Generator
) -> Features:
    layout: Layout = getattr(layer, "in_layout", getattr(layer, "layout", space.layout))
    count = channels or int(getattr(layer, "in_channels", getattr(layer, "channels", 2)))
    first = next(layer.parameters(), None) if isinstance(layer, nn.Module) else None
    dtype = torch.float64 if first is None else first.dtype
    sizes = _sizes(space, None)
    tensors = tuple(
        torch.randn(batch, *(sizes[a.node] for a in t), m * count, dtype=dtype, generator=generator)
        for t, m in zip(layout.types, layout.multiplicities, strict=True)
    )
    return Features(layout, tensors)


def _named(output: Features | Mapping[str, Tensor], space: WeightSpace) -> dict[str, Tensor]:
    """Output tensors by parameter name where they are a space's parameters, else by field."""
    if not isinstance(output, Features):
        return {name: x.detach() for name, x in output.items()}
    output = output.detach()
    for candidate in (space, space.uncharged()):
        if output.layout is candidate.layout:
            return candidate.unpack(output)
    return {field_name(t): x for t, x in output.fields.items()}
