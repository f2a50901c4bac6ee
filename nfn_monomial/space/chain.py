"""Reading a feed-forward module: its layers, the order in which they run, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import parametrize

from nfn_monomial.symmetry import Symmetry, symmetry_of

from .certificate import evaluating

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS)
# Linear maps of each channel's own feature map: they commute with permutations, scalings and sign flips.
_PER_CHANNEL = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d, nn.Upsample),
)
_CONSTANT_PADS = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
_MAX_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_SPATIAL = (*_PER_CHANNEL, *_CONSTANT_PADS, *_MAX_POOLS)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_SOFTMAXES = (nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax)
_SUPPORTED = (
    "supported are Linear, ungrouped Conv1d/2d/3d, activations (register_activation adds more), Dropout, Flatten(1), "
    "average and max pooling, padding; for any other structure write out WeightSpace(nodes, parameters)"
)


@dataclass(frozen=True)
class Chain:
    """A network as a chain of layers, in the order in which they run; what `WeightSpace.sequential` takes.

    Attributes:
        sizes: neurons or channels, network inputs first: one more than there are layers.
        kernels: kernel shape of each layer, ``()`` for a linear one.
        positions: layer index -> spatial positions that a flatten folds into that layer's columns, where not 1.
        weights: parameter name of each layer's weight.
        biases: of each layer's bias, None where it has none.
        between: for each hidden node the symmetry kept by what runs on it, or a text on why that is not known.
    """

    sizes: tuple[int, ...]
    kernels: tuple[tuple[int, ...], ...]
    positions: dict[int, int]
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    between: tuple[Symmetry | str, ...]

    @property
    def symmetries(self) -> tuple[Symmetry, ...]:
        """One symmetry per hidden node.

        Raises:
            ValueError: if one is not known. Who gives symmetries of their own never asks.
        """
        for found in self.between:
            if isinstance(found, str):
                raise ValueError(found)
        return tuple(found for found in self.between if isinstance(found, Symmetry))


class _Step(NamedTuple):
    """One leaf module at work."""

    path: str
    module: nn.Module
    joined: bool  # whether its input is the previous step's output and nothing else happened in between
    shape: tuple[int, ...] | None = None  # of its input, where the network was run

    def __str__(self) -> str:
        return f"{self.path or 'the module'} ({type(self.module).__name__})"

    def parameter(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight


def chain_of(module: nn.Module, example_input: Tensor | None = None) -> Chain:
    """The layers of a feed-forward network, and the symmetries that its activations keep (paper Prop. 3.4).

    Layers are ``nn.Linear`` and ungrouped ``nn.Conv1d/2d/3d``. Several activations between two layers intersect;
    max-pooling keeps scalings and drops sign flips; none at all keeps everything. Parameters of activations (the
    slope of ``nn.PReLU``) belong to no layer: they are not in the weight space, and ``torch.func.functional_call``
    keeps the module's own values for them.

    Nobody sees from outside what a forward of one's own calls besides its submodules. So in anything but nested
    ``nn.Sequential`` the symmetries are unknown, unless ``example_input`` shows that every submodule got the very
    output of the one before it. Unknown ones raise only when asked for, see `Chain.symmetries`. That the group really
    preserves the function is checked by `WeightSpace.from_module` alone, and only on an example (`certify`).

    Args:
        module: the network.
        example_input: a batch ``(B, ...)`` for one run, in eval mode and without gradients, that shows the order of
            the layers; without it they count in the order in which they were registered.

    Raises:
        ValueError: naming the submodule, for a layer that is not supported, that runs twice or never, or that does
            not follow the one before it; without an example, for one with forward hooks.

    >>> chain_of(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))).symmetries
    (<Symmetry.SIGN: 3>,)
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"an nn.Module is expected, found {type(module).__name__}")
    steps = list(_registered(module)) if example_input is None else _executed(module, example_input)
    layers: list[_Step] = []
    hidden: list[Symmetry | str] = []
    positions: dict[int, int] = {}
    between: list[_Step] = []
    for step in steps:
        if not isinstance(step.module, _LAYERS):
            _require_supported(step)
            between.append(step)
            continue
        _require_plain(step, layers)
        if layers:
            folded = _folded_positions(layers[-1], between, step)
            if folded != 1:
                positions[len(layers)] = folded
            hidden.append(_symmetry_between(layers[-1], between, step))
        layers.append(step)
        between = []
    if not layers:
        raise ValueError(f"{type(module).__name__} has no layer; {_SUPPORTED}")
    if example_input is None:
        _require_unhooked(module)
    return Chain(
        sizes=(layers[0].weight.shape[1], *(layer.weight.shape[0] for layer in layers)),
        kernels=tuple(tuple(layer.weight.shape[2:]) for layer in layers),
        positions=positions,
        weights=tuple(layer.parameter("weight") for layer in layers),
        biases=tuple(None if layer.module.bias is None else layer.parameter("bias") for layer in layers),
        between=tuple(hidden),
    )


def _registered(module: nn.Module) -> Iterator[_Step]:
    """Leaf modules in the order of registration. Only the forward of nn.Sequential is known to be that order."""
    before = True
    for path, leaf, known in _leaves(module, "", True):
        yield _Step(path, leaf, known and before)
        before = known


def _leaves(module: nn.Module, path: str, known: bool) -> Iterator[tuple[str, nn.Module, bool]]:
    home = type(module).__module__
    native = home.startswith("torch.nn.modules.") and home != "torch.nn.modules.container"
    if isinstance(module, _LAYERS) or native or not module._modules or _known_activation(module):
        yield path, module, known
        return
    own = [name for name, parameter in module._parameters.items() if parameter is not None]
    if own:
        raise ValueError(
            f"{_Step(path, module, known)} has parameters outside of layers: {', '.join(own)}; {_SUPPORTED}"
        )
    known = known and type(module).forward is nn.Sequential.forward
    for name, child in module._modules.items():  # named_children() would drop a module's second occurrence
        if child is not None:
            yield from _leaves(child, f"{path}.{name}" if path else name, known)


def _known_activation(module: nn.Module) -> bool:
    try:
        symmetry_of(module)
    except ValueError:
        return False
    return True


def _executed(module: nn.Module, example_input: Tensor) -> list[_Step]:
    """Leaf modules in the order in which they run on an input."""
    leaves = {id(leaf): (path, leaf) for path, leaf, _ in reversed(list(_leaves(module, "", True)))}
    steps: list[_Step] = []
    # The tensors are kept, so that no address is used twice; versions tell whether one was written to since.
    outputs: list[tuple[Any, int]] = [(example_input, example_input._version)]

    def before(leaf: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0] if args else None
        joined = _same(x, outputs[-1])
        step = _Step(leaves[id(leaf)][0], leaf, joined, tuple(x.shape) if isinstance(x, Tensor) else None)
        if not joined and any(_same(x, earlier) for earlier in outputs[:-1]):
            raise ValueError(f"{step} reads an earlier output than that of {steps[-1]}, a skip or branch; {_SUPPORTED}")
        steps.append(step)

    def after(leaf: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        outputs.append((output, output._version if isinstance(output, Tensor) else 0))

    hooks = []
    try:
        for _, leaf in leaves.values():
            hooks += [leaf.register_forward_pre_hook(before), leaf.register_forward_hook(after)]
        with evaluating(module):
            result = module(example_input)
    finally:
        for hook in hooks:
            hook.remove()
    ran = {id(step.module) for step in steps}
    never = [path for key, (path, leaf) in leaves.items() if key not in ran and any(True for _ in leaf.parameters())]
    if never:
        raise ValueError(f"{', '.join(sorted(never))} never ran on the example input; remove what is not used")
    if not _same(result, outputs[-1]):  # a function made the output, perhaps of more than the last layer's
        return [step._replace(joined=False) for step in steps]
    return steps


def _same(x: Any, output: tuple[Any, int]) -> bool:
    """Whether ``x`` is a module's output, at most reshaped."""
    y, version = output
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x._version != version:
        return False
    whole = x.numel() == y.numel() and x.is_contiguous() and y.is_contiguous()
    return x is y or (whole and x.data_ptr() == y.data_ptr() and x.dtype == y.dtype)


def _require_plain(step: _Step, before: list[_Step]) -> None:
    """Raise unless a layer computes what its class says, from a weight and a bias of its own."""
    layer = step.module
    parameters = {name for name, _ in layer.named_parameters(recurse=False)}
    if parametrize.is_parametrized(layer) or not {"weight"} <= parameters <= {"weight", "bias"}:
        raise ValueError(
            f"{step} computes its weight or bias from other parameters (weight_norm, pruning, ...); make them plain "
            "parameters first, as torch.nn.utils.parametrize.remove_parametrizations does"
        )
    if all(type(layer).forward is not kind.forward for kind in _LAYERS):
        raise ValueError(f"{step} has a forward of its own; {_SUPPORTED}")
    if isinstance(layer.weight, nn.UninitializedParameter):
        raise ValueError(f"{step} has no shape yet: run the network once, or give example_input=")
    if getattr(layer, "groups", 1) != 1:
        raise ValueError(f"{step} is a grouped convolution (groups={layer.groups}); {_SUPPORTED}")
    for earlier in before:
        if earlier.weight is step.weight:
            how = "runs twice" if earlier.module is layer else f"shares its weight with {earlier}"
            raise ValueError(f"{step} {how}: tied weights are no chain of layers; {_SUPPORTED}")


def _require_unhooked(module: nn.Module) -> None:
    """Raise where a hook, or a forward set on an object, may do other things than the class says."""
    for path, m in module.named_modules():
        if m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m):
            raise ValueError(
                f"{_Step(path, m, True)} has a forward hook or a forward of its own, which may change what it computes:"
                " remove it, or give example_input=, on which WeightSpace.from_module checks the outcome"
            )


def _require_supported(step: _Step) -> None:
    """Raise for what runs between layers but is no activation, pooling or the like."""
    module, home = step.module, type(step.module).__module__
    if _known_activation(module):
        return
    if isinstance(module, (*_DROPOUTS, *_SPATIAL, *_SOFTMAXES, nn.Flatten)):
        if not type(module).forward.__module__.startswith("torch.nn.modules."):
            raise ValueError(f"{step} has a forward of its own; {_SUPPORTED}")
        return
    if home == "torch.nn.modules.activation" and not isinstance(module, nn.MultiheadAttention | nn.GLU):
        return  # an activation; that its symmetry is not known matters only to those who ask for it
    if home.startswith("torch.nn.") or any(True for _ in module.parameters()):
        raise ValueError(f"{step} is not supported; {_SUPPORTED}")


def _symmetry_between(first: _Step, between: list[_Step], second: _Step) -> Symmetry | str:
    """What the modules between two layers commute with, or why that is not known."""
    if not all(step.joined for step in (*between, second)):
        return (
            f"what runs on the neurons between {first} and {second} is not known: a forward of the network's own may "
            "call any function. Give symmetry=, one for all hidden nodes or one each; or, if modules do all of it from "
            "input to output, example_input="
        )
    kept = Symmetry.MONOMIAL
    for step in between:
        try:
            kept &= _keeps(step.module)
        except ValueError as error:
            return f"{step} between {first} and {second}: {error}. Or give symmetry="
    return kept


def _keeps(module: nn.Module) -> Symmetry:
    if isinstance(module, _MAX_POOLS):
        return Symmetry.SCALE
    if isinstance(module, _CONSTANT_PADS):
        return Symmetry.PERMUTATION if module.value else Symmetry.MONOMIAL
    if isinstance(module, (*_DROPOUTS, *_PER_CHANNEL, nn.Flatten)):
        return Symmetry.MONOMIAL
    return Symmetry.PERMUTATION if isinstance(module, _SOFTMAXES) else symmetry_of(module)


def _folded_positions(first: _Step, between: list[_Step], second: _Step) -> int:
    """Spatial positions that lie in the columns of ``second``. Raise if it cannot follow ``first``."""
    joined = all(step.joined for step in (*between, second))
    after_conv, to_conv = (isinstance(step.module, _CONVOLUTIONS) for step in (first, second))
    flat = not after_conv
    for step in between if joined else ():
        if isinstance(step.module, nn.Flatten) and not flat:
            if (step.module.start_dim, step.module.end_dim) != (1, -1):
                raise ValueError(f"{step} after {first} must be Flatten(1), which keeps channels first in the columns")
            flat = True
        elif isinstance(step.module, _SPATIAL) and (flat if step.shape is None else len(step.shape) < 3):
            raise ValueError(f"{step} after {first} would pool or pad over neurons; {_SUPPORTED}")
    if second.shape is not None:
        flat = len(second.shape) < 3
    elif not joined:
        flat = not to_conv  # a forward of the network's own may flatten by a function call
    if to_conv and (flat or not after_conv):
        raise ValueError(f"{second} follows {first}: a convolution after a linear layer or a flatten; {_SUPPORTED}")
    if after_conv and not to_conv and not flat:
        raise ValueError(f"{second} follows {first} without a Flatten(1), so it acts on image columns; {_SUPPORTED}")
    rows, columns = first.weight.shape[0], second.weight.shape[1]
    if columns != rows and (to_conv or not after_conv or columns % rows):
        raise ValueError(f"{second} reads {columns} inputs but {first} before it has {rows} outputs; {_SUPPORTED}")
    return columns // rows
