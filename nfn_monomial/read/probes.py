"""Probes: learned inputs sent through the given networks themselves, whose answers no symmetry changes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from nfn_monomial.space import packing
from nfn_monomial.space.chain import Chain, chain_of
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry


class Probed(NamedTuple):
    """What networks answer to P inputs.

    Attributes:
        outputs: ``(B, P, *output shape)``, invariant under every symmetry that preserves the networks' functions.
        hidden: hidden node -> ``(B, n, P)``, what the neurons hand on to the next layer, averaged over spatial
            positions and, where several layers read a node, over them: a field of charge +1,
            ``h_j -> d_j h_{pi^{-1}(j)}``.
    """

    outputs: Tensor
    hidden: dict[str, Tensor]


class ProbeFeatures(nn.Module):
    """Send learned inputs through every network of a batch, and return its outputs and hidden activations.

    The template says what runs: activations, strides, padding, pooling. It is copied and run in eval mode, its weights
    and biases are replaced by those of the given networks; what else it holds (the slope of ``nn.PReLU``) is kept as it
    is, follows ``.to``, and is neither trained nor part of the state dict. Its input starts with a batch dimension.
    Networks run side by side, by ``torch.func.vmap`` over ``torch.func.functional_call``. Gradients reach inputs and
    networks. Networks may be wider than the template.

    Args:
        template: a feed-forward module, see `chain_of`.
        probes: the learned inputs ``(P, *input shape)``, or their number P; they start standard normal then.
        input_shape: of one input, for a number of probes; ``(n_0,)`` by default where the first layer is linear.
        space: whose names the networks' parameters and the hidden nodes have; by default the template's own names and
            ``h1, h2, ..``. Its layers are in the template's order, whose names are understood in any case.
        generator_rank: if given, the inputs are ``codes @ basis``, ``(P, rank)`` times ``(rank, *input shape)``, both
            learned; given probes are approximated by ones of this rank.
        chunk_size: run at most so many networks at a time, which needs less memory. None: all.

    Attributes:
        count: number of probes P.
        out_features: entries of a network's outputs, over all probes.

    Raises:
        ValueError: as `chain_of` for a template that is no chain of layers; if the space has other layers than the
            template; if the input's shape is not known or the template does not take it.

    >>> template = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> probe = ProbeFeatures(template, 16)
    >>> outputs, hidden = probe({name: p.expand(3, 1, *p.shape) for name, p in template.named_parameters()})
    >>> outputs.shape, hidden["h1"].shape
    (torch.Size([3, 16, 1]), torch.Size([3, 8, 16]))
    """

    def __init__(
        self,
        template: nn.Module,
        probes: int | Tensor,
        *,
        input_shape: Sequence[int] | None = None,
        space: WeightSpace | None = None,
        generator_rank: int | None = None,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"ProbeFeatures: chunk_size must be at least 1 or None, found {chunk_size}")
        chain = chain_of(template)
        pairs = list(zip(chain.weights, chain.biases, strict=True))
        own = WeightSpace.sequential(
            chain.sizes, chain.kernels, Symmetry.PERMUTATION,
            bias=[b is not None for b in chain.biases], positions=chain.positions, names=pairs,
        )  # fmt: skip
        self.space = own if space is None else space
        _require_same_layers(own, self.space)
        self._own_name = dict(zip(self.space.parameters, own.parameters, strict=True))
        self._template = (_tapped(template, chain),)  # in a tuple: neither parameters() nor state_dict() see it
        taps = [_owner(weight) for weight in chain.weights[1:]]
        self._inside = {p: _behind_tap(p) if _owner(p) in taps else p for p in own.parameters}
        self._read_by: dict[str, list[str]] = {}  # node -> paths of the taps of the layers that read it
        links = {self._own_name[link.parameter]: link for link in self.space.links}
        for weight, tap in zip(chain.weights[1:], taps, strict=True):
            if weight not in links:
                raise ValueError(f"ProbeFeatures: {self.space} does not say which node's neurons {weight} reads")
            self._read_by.setdefault(links[weight].ends[-1].node, []).append(tap)
        self.chunk_size = chunk_size
        like = next(template.parameters())
        start = _initial(probes, input_shape, chain, generator_rank, like)
        self.count, self.input_shape = len(start), tuple(start.shape[1:])
        if generator_rank is None:
            self.probes = nn.Parameter(start)
        else:
            codes, basis = _factor(start, generator_rank)
            self.codes, self.basis = nn.Parameter(codes), nn.Parameter(basis)
        self.out_features = self.count * self._outputs_of_one(template)

    def inputs(self) -> Tensor:
        """The learned inputs, ``(P, *input shape)``."""
        if hasattr(self, "probes"):
            return self.probes
        return (self.codes @ self.basis.flatten(1)).reshape(-1, *self.input_shape)

    def forward(self, tensors: Mapping[str, Tensor], inputs: Tensor | None = None) -> Probed:
        """Run every network on every input.

        Args:
            tensors: parameter name -> ``(B, 1, *shape)``, names of the template or of the space.
            inputs: others than the learned ones: ``(P, *input shape)``, or ``(B, P, *input shape)`` for each network
                its own.

        Raises:
            ValueError: as `WeightSpace.pack`; for networks of several channels; for inputs of another shape.
            TypeError: if networks and inputs have different dtypes.
        """
        own = {mine: name for name, mine in self._own_name.items()}
        if set(tensors) == set(own):
            tensors = {own[name]: x for name, x in tensors.items()}
        packing.check_tensors(self.space, tensors)
        first = next(iter(tensors.values()))
        if first.shape[1] != 1:
            raise ValueError(f"ProbeFeatures runs networks themselves, of 1 channel; found {first.shape[1]} channels")
        x = self.inputs() if inputs is None else inputs
        if x.dtype != first.dtype:
            raise TypeError(f"the networks are {first.dtype}, their inputs {x.dtype}: convert one of them with .to()")
        lead = x.shape[: x.ndim - len(self.input_shape)]
        if x.shape[len(lead) :] != self.input_shape or len(lead) not in (1, 2) or lead[:-1] not in ((), (len(first),)):
            raise ValueError(
                f"ProbeFeatures: inputs have shape {tuple(x.shape)}; (P, {', '.join(map(str, self.input_shape))}) is "
                f"expected, or with {len(first)} networks in front"
            )
        return self._run({mine: tensors[name].squeeze(1) for name, mine in self._own_name.items()}, x)

    def _run(self, networks: dict[str, Tensor], x: Tensor) -> Probed:
        """Networks ``(B, *shape)`` on inputs ``(P, *input shape)`` or ``(B, P, *input shape)``."""
        (template,) = self._template
        networks = {self._inside[name]: t for name, t in networks.items()}
        taps = {
            node: [cast(_Tap, template.get_submodule(path)) for path in paths] for node, paths in self._read_by.items()
        }

        def answer(network: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            outputs = torch.func.functional_call(template, network, (x,))
            seen = {node: [tap.seen.pop() for tap in readers] for node, readers in taps.items()}
            return outputs, {n: h[0] if len(h) == 1 else torch.stack(h).mean(0) for n, h in seen.items()}

        shared = x.ndim == 1 + len(self.input_shape)
        batched = torch.func.vmap(answer, in_dims=(0, None if shared else 0), chunk_size=self.chunk_size)
        return Probed(*batched(networks, x))

    def _outputs_of_one(self, template: nn.Module) -> int:
        parameters = dict(template.named_parameters())
        networks = {mine: parameters[mine].detach()[None] for mine in self._own_name.values()}
        with torch.no_grad():
            try:
                return self._run(networks, self.inputs()[:1]).outputs.numel()
            except RuntimeError as error:
                raise ValueError(
                    f"ProbeFeatures: the template does not take inputs of shape {self.input_shape}: {error}"
                ) from error

    def _apply(self, fn: Any, recurse: bool = True) -> ProbeFeatures:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for template in self._template:
            template._apply(fn)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        rank = "" if hasattr(self, "probes") else f", generator_rank={len(self.basis)}"
        return f"{self.space}, {self.count} x {self.input_shape}{rank}, out_features={self.out_features}"


class _Tap(nn.Module):
    """A layer that leaves the activations that enter it in ``seen``, as ``(n, P)``."""

    def __init__(self, layer: nn.Module, positions: int) -> None:
        super().__init__()
        self.layer, self.positions = layer, positions
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        linear = isinstance(self.layer, nn.Linear)
        neurons = cast(Tensor, self.layer.weight).shape[1] // self.positions
        channels_first = x.movedim(-1, 1) if linear else x
        self.seen[:] = [channels_first.reshape(len(x), neurons, -1).mean(-1).mT]
        out: Tensor = self.layer(x)
        return out


def _tapped(template: nn.Module, chain: Chain) -> nn.Module:
    """A frozen copy of the template with a `_Tap` at every layer but the first."""
    copied = copy.deepcopy(template).eval().requires_grad_(False)
    for i, path in enumerate(map(_owner, chain.weights)):
        if i:
            copied.set_submodule(path, _Tap(copied.get_submodule(path), chain.positions.get(i, 1)))
    return copied


def _owner(parameter: str) -> str:
    """The path of the module that a parameter belongs to."""
    path, _, _ = parameter.rpartition(".")
    return path


def _behind_tap(parameter: str) -> str:
    path, _, own = parameter.rpartition(".")
    return f"{path}.layer.{own}"


def _require_same_layers(own: WeightSpace, space: WeightSpace) -> None:
    shapes = own.shapes()
    if len(shapes) != len(space.parameters):
        raise ValueError(
            f"ProbeFeatures: the template has {len(shapes)} parameters ({', '.join(shapes)}), the space "
            f"{len(space.parameters)} ({', '.join(space.parameters)})"
        )
    pairs = zip(space.parameters, shapes.values(), strict=True)
    packing.check_tensors(space, {name: torch.empty(1, 1, *shape, device="meta") for name, shape in pairs})


def _initial(probes: int | Tensor, shape: Sequence[int] | None, chain: Chain, rank: int | None, like: Tensor) -> Tensor:
    """The inputs to start from; random ones standard normal, and of the given rank."""
    if isinstance(probes, Tensor):
        return probes.detach().clone()
    if shape is None and chain.kernels[0]:
        raise ValueError("ProbeFeatures: give input_shape=, as (channels, height, width), or initial probes")
    shape = tuple(shape or (chain.sizes[0],))
    if probes < 1:
        raise ValueError(f"ProbeFeatures: at least 1 probe is needed, found {probes}")
    if rank is None:
        return torch.randn(probes, *shape, dtype=like.dtype, device=like.device)
    codes, basis = torch.randn(probes, rank, dtype=like.dtype), torch.randn(rank, math.prod(shape), dtype=like.dtype)
    start: Tensor = codes @ basis / rank**0.5
    return start.reshape(probes, *shape).to(like.device)


def _factor(inputs: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of a rank as codes ``(P, rank)`` times a basis ``(rank, *input shape)`` of size 1."""
    flat = inputs.flatten(1)
    if not 1 <= rank <= min(flat.shape):
        raise ValueError(
            f"generator_rank must be 1 to {min(flat.shape)} for {tuple(inputs.shape)} probes, found {rank}"
        )
    left, values, right = torch.linalg.svd(flat.double(), full_matrices=False)
    unit = flat.shape[1] ** 0.5
    codes, basis = left[:, :rank] * values[:rank] / unit, right[:rank] * unit
    return codes.to(inputs.dtype), basis.to(inputs.dtype).reshape(rank, *inputs.shape[1:])
