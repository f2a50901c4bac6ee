"""Probes: learned inputs sent through networks themselves, whose answers no symmetry changes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.checks import FLOATING, Count, Size, checked, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.running import attention_in_parts
from nfn_monomial.sites import LAYERS, state_of, template_names, true_sites
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Charge
from nfn_monomial.space.weight_space import WeightSpace


class Probed(NamedTuple):
    """The answers of networks to P inputs.

    Attributes:
        outputs: ``(B, P, *output shape)``, invariant under every symmetry that preserves the networks' functions; of a
            network with several outputs, all in a row, ``(B, P, n)``.
        hidden: hidden node -> ``(B, n, P)``, activations as the next layer reads them, averaged over positions and,
            where several layers read a node, over them: a field of the charge `ProbeFeatures.charges`, +1 after
            ordinary layers, ``h_j -> d_j h_{pi^{-1}(j)}``. Of a nested node ``(B, *sizes, P)``.
    """

    outputs: Tensor
    hidden: dict[str, Tensor]


class ProbeFeatures(nn.Module):
    """Send learned inputs through every network of a batch, and return its outputs and hidden activations.

    The template is any module: it has the activations, strides, padding, pooling, residual connections. It is copied
    and run in eval mode, with the parameters and buffers of the space (weights, running statistics) replaced by those
    of the given networks; its other tensors (the slope of ``nn.PReLU``) are kept, follow ``.to``, and are
    neither trained nor part of the state dict. Its input starts with a batch dimension. Networks run side by side, by
    ``torch.func.vmap`` over ``torch.func.functional_call``; one after the other where PyTorch has no batched form of
    an operator in the template, such as ``nn.LSTM``. Gradients reach inputs and networks, but for running
    statistics. Networks may be wider than the template, where its forward allows it.

    Hidden activations are seen where ``nn.Linear`` and ``nn.Conv1d`` to ``nn.Conv3d`` (of one group) read them: with
    columns of charge q, they are a field of charge -q. Nodes that nothing of the kind reads are left out, as are those
    whose activations move otherwise, by factors on whole tensors: a random group element tells, once, in float64.

    Args:
        template: a module.
        probes: the learned inputs ``(P, *input shape)``, or their number P; they start standard normal then. Or a
            generator: a module that returns them when called without arguments, and becomes part of this one.
        input_shape: of one input, for a number of probes; by default ``(n,)`` where the first layer is linear.
        space: whose names the networks' parameters and the hidden nodes have, by default that of
            `WeightSpace.from_module`. Its parameters have the template's names, or are in the template's order, whose
            names are understood in any case.

    Attributes:
        count: number of probes P.
        out_features: entries of a network's outputs, over all probes.
        charges: hidden node -> charge of its field. Of a node that layers read with several charges, the first counts.

    Raises:
        ValueError: as `WeightSpace.from_module`; if the template has not the parameters of the space; if the input's
            shape is not known or the template does not take it.

    >>> template = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> probe = ProbeFeatures(template, 16)
    >>> outputs, hidden = probe({name: p.expand(3, 1, *p.shape) for name, p in template.named_parameters()})
    >>> outputs.shape, hidden["layer0"].shape
    (torch.Size([3, 16, 1]), torch.Size([3, 8, 16]))
    """

    @checked
    def __init__(
        self,
        template: nn.Module,
        probes: Count | Tensor | nn.Module,
        *,
        input_shape: Sequence[Size] | None = None,
        space: WeightSpace | None = None,
    ) -> None:
        super().__init__()
        start = _initial(probes, input_shape, template)
        self.count, self.input_shape = len(start), tuple(start.shape[1:])
        copied = copy.deepcopy(template).eval().requires_grad_(False)
        self._template = (copied,)  # in a tuple: neither parameters() nor state_dict() see it
        self._statistics = {name for name, _ in copied.named_buffers()}
        try:
            with torch.no_grad():
                self.out_features = self.count * _as_tensor(copied(start[:1]), 1).numel()
        except RuntimeError as error:
            raise InvalidValueError(
                f"ProbeFeatures: the template does not take inputs of shape {self.input_shape}: {error}; probes "
                "are real numbers: of a network that reads tokens, give the part after its embedding"
            ) from error
        self.space = WeightSpace.from_module(template, start[:1]) if space is None else space
        self._template_names = template_names(template, self.space)
        self._batched = _runs_side_by_side(copied, start[:1])
        self.charges: dict[str, Charge] = {}
        self._sites = []
        for site in true_sites(copied, self.space, self._template_names, start[:1]):
            if self.charges.setdefault(site.node, site.charge) == site.charge:
                self._sites.append(site)
            else:
                site.remove()
        if isinstance(probes, nn.Module):
            self.generator = probes
        else:
            self.probes = nn.Parameter(start)

    def inputs(self) -> Tensor:
        """The learned inputs, ``(P, *input shape)``."""
        if not hasattr(self, "generator"):
            return self.probes
        made: Tensor = self.generator()
        return made.to(next(self.parameters(), made).dtype)  # autocast has products in a narrower one

    def forward(self, tensors: Mapping[str, Tensor]) -> Probed:
        """Run every network on every input.

        Args:
            tensors: parameter name -> ``(B, 1, *shape)``, names of the template or of the space.

        Raises:
            ValueError: as `WeightSpace.pack`; for networks of several channels.
            TypeError: if networks and inputs have different dtypes.
        """
        if isinstance(tensors, Mapping) and set(tensors) == set(self._template_names.values()):
            tensors = {name: tensors[key] for name, key in self._template_names.items()}
        sizes = packing.check_tensors(self.space, tensors)
        first, x = next(iter(tensors.values())), self.inputs()
        if first.shape[1] != 1:
            raise InvalidValueError(
                f"ProbeFeatures runs networks themselves, of 1 channel; found {first.shape[1]} channels"
            )
        if packing.on_cpu(tensors) and not any(t.requires_grad for t in tensors.values()):
            packing.require_finite(tensors)
        if (x.dtype, x.device) != (first.dtype, first.device):
            raise InvalidTypeError(
                f"the networks are {first.dtype} on {first.device}, their inputs {x.dtype} on {x.device}: convert one "
                "of them with .to()"
            )
        networks = {key: tensors[name].squeeze(1) for name, key in self._template_names.items()}
        # Normalisation is not differentiable with respect to these.
        networks |= {key: t.detach() for key, t in networks.items() if key in self._statistics}
        if self._batched:
            return Probed(*torch.func.vmap(lambda network: self._answer(network, x, sizes))(networks))
        each = [self._answer({key: t[b] for key, t in networks.items()}, x, sizes) for b in range(len(first))]
        return Probed(*pytree.tree_map(lambda *parts: torch.stack(parts), *each))

    def _answer(
        self, network: dict[str, Tensor], x: Tensor, sizes: Mapping[str, int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs and hidden activations of one network."""
        for site in self._sites:
            site.seen.clear()
        outputs = _run(self._template[0], network, x)
        fields: dict[str, list[Tensor]] = {}
        for site in self._sites:
            fields.setdefault(site.node, []).extend(site.fields(sizes))
            site.seen.clear()
        return outputs, {n: h[0] if len(h) == 1 else torch.stack(h).mean(0) for n, h in fields.items()}

    def _replicate_for_data_parallel(self) -> ProbeFeatures:
        """Replicas run at the same time, so each has a template of its own, with its sites."""
        replica: ProbeFeatures = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._template, replica._sites = copy.deepcopy((self._template, self._sites))
        return replica

    def _apply(self, fn: Any, recurse: bool = True) -> ProbeFeatures:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._template[0]._apply(fn)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return f"{self.space}, {self.count} x {self.input_shape}, out_features={self.out_features}"


def _run(template: nn.Module, network: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The outputs of one network for inputs, in one tensor."""
    attends = any(isinstance(module, nn.MultiheadAttention) for module in template.modules())
    with attention_in_parts() if attends else contextlib.nullcontext():
        return _as_tensor(torch.func.functional_call(template, dict(network), (x,)), len(x))


def _as_tensor(outputs: Any, count: int) -> Tensor:
    """Joins all that a module returns for ``count`` inputs into one tensor ``(count, n)``, if it is several."""
    if isinstance(outputs, Tensor):
        return outputs
    leaves = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.is_floating_point()]
    return torch.cat([x.reshape(count, -1) for x in leaves], -1)


def _runs_side_by_side(template: nn.Module, x: Tensor) -> bool:
    """Returns whether all that the template computes can run for many networks at once."""
    networks = {key: t.detach()[None] for key, t in state_of(template).items()}
    try:
        with torch.no_grad():
            torch.func.vmap(lambda network: _run(template, network, x))(networks)
    except RuntimeError as error:
        if "atching rule" not in str(error):
            raise
        return False
    return True


def _initial(probes: int | Tensor | nn.Module, shape: Sequence[int] | None, template: nn.Module) -> Tensor:
    """The inputs to start from, random ones standard normal."""
    start = probes() if isinstance(probes, nn.Module) else probes
    if not isinstance(start, int):
        if not isinstance(start, Tensor) or start.ndim < 2 or not len(start) or start.dtype not in FLOATING:
            raise InvalidValueError(
                f"ProbeFeatures: probes must be a floating point tensor (P, *input shape), or make one, found "
                f"{shown(start)}"
            )
        if packing.concrete((start,)) and not bool(start.isfinite().all()):
            raise InvalidValueError("ProbeFeatures: probes hold NaN or infinite values")
        return start.detach().clone()
    if shape is None:
        first = next((m for m in template.modules() if isinstance(m, LAYERS)), None)
        if not isinstance(first, nn.Linear):
            raise InvalidValueError("ProbeFeatures: give input_shape=, as (channels, height, width), or initial probes")
        shape = (first.in_features,)
    like = next(template.parameters())
    return torch.randn(start, *shape, dtype=like.dtype, device=like.device)
