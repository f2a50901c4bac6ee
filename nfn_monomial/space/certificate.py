"""The certificate of a weight space: its group leaves what a real module computes alone (paper Prop. 4.4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .groups import GroupElement
from .packing import concrete

_TRIALS = 4
_RTOL = 1e-9  # in float64, where a group that keeps the function is right to 1e-12


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; behind it, every submodule has the mode back that it had."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for m, mode in modes:
            m.training = mode


def answers(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What a module with these parameters and buffers answers to ``x`` in eval mode: all its outputs, as a vector."""
    with evaluating(module):
        found = torch.func.functional_call(module, dict(tensors), (x,))
    outputs = [t.flatten() for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
    if not outputs:
        raise ValueError(f"{type(module).__name__} returns no tensor but {type(found).__name__}")
    return torch.cat(outputs)


def relative_error(found: Tensor, expected: Tensor, scale: Tensor) -> float:
    """The largest difference, divided by ``scale``; 0 where there is none, NaN where one is NaN."""
    error = float((found - expected).detach().abs().max())
    return error if not error else error / float(scale) if float(scale) else float("inf")


def certify(module: nn.Module, example_input: Tensor, sample: Callable[..., GroupElement]) -> None:
    """Raise unless random group elements leave a module's function alone, on the example and in its neighbourhood.

    Everything is computed on the CPU in float64. The first element acts on the module's own parameters, those after it
    on parameters and inputs with random numbers of their own size added: what holds for weights of 0 alone is not
    enough.

    Args:
        module: the network, run in eval mode, each submodule's mode and all parameters left as they are.
        example_input: a batch ``(B, ...)``.
        sample: `WeightSpace.sample` of the space that is in question.

    Raises:
        ValueError: if the function changes, with its relative change; or if nothing can be said: the example holds no
            values, the module does not run in float64, or its outputs are not finite.
    """
    if not concrete((example_input,)):
        raise ValueError("example_input holds no values (a meta tensor, or under a transform): nothing can be checked")
    generator = torch.Generator().manual_seed(0)
    own = {name: _wide(t) for name, t in (*module.named_parameters(), *module.named_buffers())}
    for trial in range(_TRIALS):
        element = sample(generator=generator).proper()
        tensors, x = dict(own), _wide(example_input)
        if trial:
            tensors |= {name: _disturbed(own[name], generator) for name in element.space.parameters}
            x = _disturbed(x, generator) if x.is_floating_point() else x
        try:
            expected, found = answers(module, tensors, x), answers(module, element.act(tensors), x)
        except RuntimeError as reason:
            raise ValueError(
                f"{type(module).__name__} does not run on the CPU in float64, in which the example input is used to "
                f"check the space ({reason}). Without example_input= nothing is checked"
            ) from reason
        if trial and not bool(expected.isfinite().all()):
            continue  # random numbers may leave what the function is defined for
        error = relative_error(found, expected, expected.abs().max())
        if not error <= _RTOL:
            raise ValueError(
                f"the group of {element.space} changes what {type(module).__name__} computes on the example input, by "
                f"{error:.1e} (relative). Something acts on the neurons besides the layers and activations with that "
                "symmetry: a residual connection, a hook, a function call. Give the smaller symmetry= that is left, "
                "or write out WeightSpace(nodes, parameters), where tensors that are added share a node"
            )


def _wide(t: Tensor) -> Tensor:
    return t.detach().to("cpu", torch.float64) if t.is_floating_point() else t.detach().cpu()


def _disturbed(t: Tensor, generator: torch.Generator) -> Tensor:
    """``t`` plus normal random numbers of its root mean square; of 0, as of a fresh layer of its width."""
    size = t.square().mean().sqrt()
    size = size if size > 0 else t[0].numel() ** -0.5
    return t + size * torch.randn(t.shape, dtype=t.dtype, generator=generator)
