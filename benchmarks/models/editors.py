"""Models that edit networks: the weights of an INR -> the weights of one that shows another image (paper Sec. 6.3).

Every editor adds a learned change, small at first, to the weights that it is given, and answers with the image that the
edited network renders. `Editor.prepare` has no learned parameters and is done once per data set.

Adding an editor is adding a class:

    @register_editor("my-editor")
    class MyEditor(Editor):
        label, invariant_under = "Mine", "permutations"

        def __init__(self, siren: Siren, config: EditorConfig) -> None: ...
        def edit(self, networks: Features) -> Features: ...

``balanced-`` before a name puts the canonical form of signs before the editor (`nfn_monomial.Balance`): it
edits another network with the same function, so that the edited image no longer depends on the signs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from nfn.common import WeightSpaceFeatures
from nfn.layers import (
    HNPLinear,
    LearnedScale,
    NPLinear,
    TupleOp,
)
from torch import Tensor, nn

from nfn_monomial import EquivariantNFN, Features
from nfn_monomial.adapters.nfn import from_tensors, to_tensors
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.experiments.edit import EditorConfig
from nfn_monomial.canonical import Balance, absorb_omega, canonical_phase
from nfn_monomial.models import MessagePassingEditor, equivariant_stack
from nfn_monomial.nn import InputNorm
from nfn_monomial.tools.predictors.models import BALANCED, InvariantUnder, Register, Sees

from .parts import fourier_front, nfn_chain

__all__ = ["Editor", "build_editor", "register_editor"]

LAYERS = 3  # of NP and HNP, and hidden ones of the MLP


class Editor(nn.Module):
    """Base of all editors: prepared networks -> images of the edited networks, ``(B, C, H, W)``.

    Attributes:
        label: name in tables and figures.
        invariant_under: the group that leaves the edited image as it is: the network's whole symmetry group
            (permutations and sign flips), permutations of hidden neurons only, or nothing.
        sees: the weights alone; see `nfn_monomial.tools.predictors.models.Model`, as for ``any_width``.
        siren: of the prepared networks; the one that was given, but for its omega_0 where that is absorbed.
        space: their weight space.
    """

    label: ClassVar[str]
    invariant_under: ClassVar[InvariantUnder]
    sees: ClassVar[Sees] = "weights"
    any_width: ClassVar[bool] = True

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__()
        self.canonical = config.inputs == "canonical"
        self.omega_0 = siren.omega_0
        self.siren = replace(siren, omega_0=1.0) if self.canonical else siren
        self.space = siren.space
        self.norm = InputNorm(self.space)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Features:
        """Networks ``(N, *shape)`` as stored, without omega_0, -> input of `forward`, which takes any rows of it.

        Raises:
            ValueError: if they are of another architecture or hold NaN or infinite values, naming the parameter.
        """
        networks = {name: t.unsqueeze(1) for name, t in tensors.items()}
        if self.canonical:
            networks = canonical_phase(absorb_omega(networks, self.space, self.omega_0), self.space)
        return self.space.pack(networks)

    def fit_inputs(self, prepared: Iterable[Features]) -> None:
        """Takes input statistics from batches of the prepared training networks; called once, before training."""
        if self.canonical:
            self.norm.fit(prepared)

    def edit(self, networks: Features) -> Features:
        """Networks in the units of `InputNorm` -> edited networks in these units."""
        raise NotImplementedError

    def edited(self, prepared: Features) -> dict[str, Tensor]:
        """The edited networks, ``(B, *shape)``, for ``siren``."""
        networks = self.space.unpack(self.norm.inverse(self.edit(self.norm(prepared))))
        return {name: t.squeeze(1) for name, t in networks.items()}

    def forward(self, prepared: Features) -> Tensor:
        # Batched matrix products give the images and gradients of `vmap` over `functional_call` in 1 to 6% less time.
        # Most of it goes into sines; a step of NP takes seven times as long, so all pixels are rendered.
        return self.siren.render(self.edited(prepared))


class ChangeEditor(Editor):
    """Base of editors that compute a change with nfn's layers or none, added through nfn's ``LearnedScale``."""

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__(siren, config)
        self.spec = nfn_chain(self.space).spec
        self.scale = LearnedScale(self.spec, config.init_scale)

    def change(self, networks: Features) -> WeightSpaceFeatures:
        raise NotImplementedError

    def edit(self, networks: Features) -> Features:
        change = to_tensors(self.scale(self.change(networks)))
        return networks + self.space.pack(change, check_finite=False)


def _balanced(base: Any) -> Any:
    class Balanced(base):  # type: ignore[misc]
        def prepare(self, tensors: Mapping[str, Tensor]) -> Features:
            # After the phases, on which the signs depend.
            balanced: Features = Balance(self.space)(super().prepare(tensors))
            return balanced

    return Balanced


register_editor: Register[type[Editor]] = Register("editor", {BALANCED: _balanced})
"""Class decorator: ``@register_editor("name")`` makes an editor known to the experiment and on the command line.

The classes by name, baselines first; an unknown name is a ValueError that lists the known ones.
"""


def build_editor(name: str, siren: Siren, config: EditorConfig, *, seed: int) -> Editor:
    """A freshly initialised editor on the CPU; the seed fixes its parameters and the global generator is left alone.

    Raises:
        ValueError: if there is no such editor.
    """
    cls = register_editor[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(siren, config)


@register_editor("mlp")
class FlatEditor(ChangeEditor):
    """All weights in one vector, an MLP that knows no symmetry, all changes in one vector."""

    label, invariant_under = "MLP", "nothing"
    any_width = False

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__(siren, config)
        self.shapes = self.space.shapes()
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        widths = [sum(self.sizes), *[config.mlp] * LAYERS]
        hidden = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        self.net = nn.Sequential(*hidden, nn.Linear(config.mlp, sum(self.sizes)))

    def change(self, networks: Features) -> WeightSpaceFeatures:
        tensors = self.space.unpack(networks)
        flat = torch.cat([tensors[name].flatten(1) for name in self.shapes], 1)
        parts = self.net(flat).split(self.sizes, 1)
        shapes = self.shapes.items()
        return from_tensors({name: x.view(-1, 1, *shape) for (name, shape), x in zip(shapes, parts, strict=True)})


class _PermutationEditor(ChangeEditor):
    """Gaussian Fourier features of every weight, then three of nfn's layers with ReLU and one down to the change."""

    invariant_under = "permutations"
    layer: ClassVar[type[nn.Module]]

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__(siren, config)
        spec = self.spec
        layers, channels = fourier_front(spec, config.fourier // 2, config.fourier_scale, self.layer is NPLinear)
        for c_in in (channels, *[config.width] * (LAYERS - 1)):
            layers += [self.layer(spec, c_in, config.width), TupleOp(nn.ReLU())]
        self.body = nn.Sequential(*layers, self.layer(spec, config.width, 1))

    def change(self, networks: Features) -> WeightSpaceFeatures:
        change: WeightSpaceFeatures = self.body(from_tensors(self.space.unpack(networks)))
        return change


@register_editor("np")
class NPEditor(_PermutationEditor):
    """Zhou et al. 2023: permutations of inputs and outputs too, broken by a positional encoding."""

    label, layer = "NP", NPLinear


@register_editor("hnp")
class HNPEditor(_PermutationEditor):
    """Zhou et al. 2023: permutations of hidden neurons only."""

    label, layer = "HNP", HNPLinear


@register_editor("monomial")
class MonomialEditor(Editor):
    """The paper's equivariant layers alone: three, with an odd activation between.

    Equivariant under permutations and sign flips. In such a layer a weight between hidden layers sees itself alone.
    """

    label, invariant_under = "Monomial", "group"

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__(siren, config)
        self.net = EquivariantNFN(self.space, (config.monomial, config.monomial), init_scale=config.init_scale)

    def edit(self, networks: Features) -> Features:
        edited: Features = self.net(networks)
        return edited


@register_editor("monomial-np")
class MonomialNPEditor(_PermutationEditor):
    """The paper's hybrid (App. D.5): two monomial layers, 1 -> 16 -> 1 channels, then NP as above.

    The paper does not name the activation between the two; it is the sine here, as in its classifiers. Its NP part
    reads the charged features as they are, and no canonicalisation is named: so the symmetry of the monomial layers is
    lost, and the hybrid as a whole is equivariant under permutations of hidden neurons only. (Were the signs taken off
    in between, by absolute values as in the classifiers, the change would not flip with the weights it is added to, and
    the hybrid would not be equivariant either.) ``balanced-monomial-np`` is invariant under the group.
    """

    label, layer = "Monomial-NP", NPLinear

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__(siren, config)
        self.front = equivariant_stack(self.space, [1, config.monomial, 1], "sin")

    def change(self, networks: Features) -> WeightSpaceFeatures:
        return super().change(self.front(networks))


@register_editor("message-passing")
class MessageEditor(Editor):
    """Equivariant message passing along the edited network, both ways: see `MessagePassingEditor`."""

    label, invariant_under = "Message passing", "group"

    def __init__(self, siren: Siren, config: EditorConfig) -> None:
        super().__init__(siren, config)
        self.net = MessagePassingEditor(self.space, config.messages, config.blocks, init_scale=config.init_scale)

    def edit(self, networks: Features) -> Features:
        edited: Features = self.net(networks)
        return edited
