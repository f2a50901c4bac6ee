"""Weight spaces: which parameters a network has, and on which nodes' neurons their axes run (paper Sec. 4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Device, Size, Within, checked, require, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.symmetry import Symmetry

from . import as_json, packing
from .axes import Axis, Dim, FieldType, Sum, each_axis, factors_of, flatten_dims, powers, size_of, sums_in
from .features import Features, Layout, Types
from .folding import Folding, layout_of
from .geometry import SymmetryLike, cnn_geometry, sequential_geometry, spec_geometry
from .links import SharedScale, links_of
from .nodes import Node, ancestry, checked_nodes
from .origin import Origin
from .places import Piece, Place, completed, cut_parameter, places_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from nfn_monomial.report import Drawing

    from .groups import GroupElement

Value = TypeVar("Value")

LATELY = 8
"""The number of results that `WeightSpace.lately` keeps of one function."""


class WeightSpace:
    """The parameters of a network architecture and the group that leaves its function unchanged.

    Immutable and hashable; it holds no tensors and knows no batch size. Sizes of hidden nodes are only a default
    for `sample`; packing checks that tensors agree with one another: wider networks are welcome.

    Dimensions are stored in two forms: ``parameters`` as the user has them, and ``pieces``, which have no sums and say
    where each axis lies. All other tables are derived from these.

    Args:
        nodes: name -> `Symmetry`, ``(symmetry, size)`` or a `Node`, which may have several gauges and be nested in
            another; in order from the network's inputs to its outputs.
        parameters: name -> dimensions in tensor order. A dimension is an `Axis`, an int (a kernel dimension,
            which nothing acts on), a tuple of those for one tensor dimension that is their row-major product
            (the columns of a linear layer after a flatten: ``(Axis("h3", -1), 9)``), or a `Sum` of several. An axis of
            a nested node belongs to the nearest axis of its parent before it; if there is none, one is put before it.
        dead: parameters, or pieces of them, that do not matter to the function.
        ties: other names of parameters, as state dicts have them where weights are tied -> the name in ``parameters``.

    Attributes:
        nodes: name -> `Node`.
        parameters: name -> dimensions, with charges for all gauges and all axes that others are nested in.
        pieces: name -> `Piece`; a parameter without sums is one piece of the same name.
        pieces_of: parameter -> names of its pieces.
        axes: piece -> its axes and the sizes of its other dimensions, dimensions that are products taken apart.
        places: where every axis of every piece lies, see `Place`.
        links: which parameter leads from which node to which, see `Link`.
        nesting: nested node -> its parent.
        folding: how parameters lie in the fields of `Features`.
        layout: the layout of these `Features`.
        dead, ties: as passed, or as `from_module` has derived them.
        origin: what deriving and testing the space has shown, where `from_module` made it.

    Raises:
        ValueError: if an axis names an unknown node, a FIXED node has no size, or a name cannot be used.

    >>> space = WeightSpace.mlp([2, 32, 32, 1], "sin")
    >>> space
    WeightSpace.mlp(2-32-32-1, SIGN)
    >>> space.describe("weight.1")
    'weight.1 (B, C, h2=32, h1=32)'
    >>> [(link.parameter, link.source, link.target) for link in space.links[:2]]
    [('weight.0', 'x', 'h1'), ('bias.0', None, 'h1')]
    """

    @checked
    def __init__(
        self,
        nodes: Mapping[str, Symmetry | tuple[Symmetry, Size | None] | Node],
        parameters: Mapping[str, Sequence[Dim]],
        *,
        label: str = "",
        dead: Sequence[str] = (),
        ties: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes = checked_nodes(nodes)
        self.label, self.dead, self.ties = label, tuple(dead), dict(ties or {})
        if not parameters:
            raise InvalidValueError("a weight space needs at least one parameter")
        for name, dims in parameters.items():
            for factor in factors_of(dims):
                if isinstance(factor, Axis) and factor.node not in self.nodes:
                    raise InvalidValueError(f"{name}: axis {factor} names no node; nodes: {', '.join(self.nodes)}")
                if isinstance(factor, int) and not 1 <= factor < 2**63:
                    raise InvalidValueError(f"{name}: dimension {factor} must be from 1 to 2**63 - 1")
            for part in itertools.chain.from_iterable(map(sums_in, dims)):
                if part.shared < 0 or len(part.lead) < part.shared:
                    raise InvalidValueError(f"{name}: {part.shared} factors are shared, of {part.parts[0]}")
        self.parameters = {name: completed(dims, self.nodes) for name, dims in parameters.items()}
        self.pieces: dict[str, Piece] = {}
        self.pieces_of: dict[str, list[str]] = {}
        for name, dims in self.parameters.items():
            pieces = cut_parameter(name, dims, self.nodes)
            self.pieces_of[name] = list(pieces)
            self.pieces |= pieces
        if unknown := [name for name in self.dead if name not in self.pieces]:
            raise InvalidValueError(f"dead={', '.join(unknown)}: no parameters or pieces of {', '.join(self.pieces)}")
        for name, tied in self.ties.items():
            if tied not in self.parameters or name in self.parameters:
                raise InvalidValueError(
                    f"ties={{{name!r}: {tied!r}}}: another name of a parameter is expected, then the parameter, one of "
                    f"{', '.join(self.parameters)}"
                )
        self.origin: Origin | None = None
        # These tables are derived here, and not when they are first read, which torch.compile does not trace.
        self.nesting = {name: node.parent for name, node in self.nodes.items() if node.parent is not None}
        self._rank = {name: position for position, name in enumerate(self.nodes)}
        self.axes = {name: piece.axes for name, piece in self.pieces.items()}
        self.places = tuple(itertools.chain.from_iterable(piece.places for piece in self.pieces.values()))
        self.links = links_of(self.pieces, list(self.nodes))
        self.folding = Folding(self, {name: piece.dims for name, piece in self.pieces.items()})
        self.layout = self.folding.layout
        self.passed: tuple[object, dict[str, int]] = (None, {})
        self._kept: dict[tuple[Hashable, ...], Any] = {}

    @classmethod
    @checked
    def mlp(
        cls,
        sizes: Sequence[Size],
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        bias: bool | Sequence[bool] = True,
        *,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> WeightSpace:
        """Fully connected network with nodes ``x, h1, .., y`` and parameters ``weight.i`` (out, in), ``bias.i``.

        Args:
            sizes: ``[n_0, ..., n_L]``, inputs first.
            symmetry: of the hidden nodes (a symmetry, its name, or the activation), one or one per node.
            bias: whether layers have biases, one or one per layer.
            io_symmetry: of inputs and outputs: FIXED as in the paper; PERMUTATION gives NP.
        """
        if len(sizes) < 2:
            raise InvalidValueError(f"mlp needs at least input and output size, found {list(sizes)}")
        return cls.sequential(list(sizes), [()] * (len(sizes) - 1), symmetry, bias=bias, io_symmetry=io_symmetry)

    @classmethod
    @checked
    def cnn(
        cls,
        channels: Sequence[Size],
        kernel_sizes: Size | Sequence[Size | Sequence[Size]],
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        head: Sequence[Size] = (),
        *,
        ndim: Annotated[int, Within(1, 3)] = 2,
        positions: Size = 1,
        bias: bool | Sequence[bool] = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> WeightSpace:
        """Convolutions, then global pooling or flatten, then linear layers (paper Eq. cnn-equation).

        Args:
            channels: ``[c_0, ..., c_K]`` of the convolutions, input channels first.
            kernel_sizes: one, or one per convolution; an int is a cube in ``ndim`` dimensions, 1 to 3.
            symmetry: of the hidden nodes, convolutions first; as ``bias`` and ``io_symmetry`` see `mlp`.
            head: sizes of the linear layers after the convolutions, outputs last. Empty: all convolutional.
            positions: spatial positions that reach the first linear layer: 1 after global pooling, height x width
                after a flatten.

        >>> WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
        WeightSpace.cnn(1-16-16-16-10, SCALE)
        """
        geometry = cnn_geometry(channels, kernel_sizes, head, ndim=ndim, positions=positions)
        return cls.sequential(symmetry=symmetry, bias=bias, io_symmetry=io_symmetry, **geometry)

    @classmethod
    @checked
    def from_network_spec(
        cls,
        network_spec: Any,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        *,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> WeightSpace:
        """The weight space of an ``nfn.common.NetworkSpec`` (sizes of -1 are unknown), as ``weight.i``, ``bias.i``.

        Raises:
            ValueError: if the spec's layers do not fit together, or the size of a FIXED node is unknown (-1).
        """
        return cls.sequential(symmetry=symmetry, io_symmetry=io_symmetry, **spec_geometry(network_spec))

    @classmethod
    @checked
    def sequential(
        cls,
        sizes: Sequence[Size | None],
        kernels: Sequence[Sequence[Size]],
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        *,
        bias: bool | Sequence[bool] = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
        positions: Mapping[int, Size] | None = None,
        names: Sequence[tuple[str, str | None]] | None = None,
    ) -> WeightSpace:
        """Any chain of layers, from which `mlp`, `cnn` and `from_network_spec` are made.

        Args:
            sizes: ``L + 1`` node sizes; None for a hidden size that is not known.
            kernels: ``L`` kernel shapes, ``()`` for a linear layer.
            symmetry: of the hidden nodes; as ``bias`` and ``io_symmetry`` see `mlp`.
            positions: layer index -> spatial positions folded into that layer's columns by a flatten.
            names: ``L`` pairs (weight name, bias name); ``weight.i`` and ``bias.i`` by default.
        """
        nodes, parameters, label = sequential_geometry(sizes, kernels, symmetry, bias, io_symmetry, positions, names)
        return cls(nodes, parameters, label=label)

    @classmethod
    def from_module(
        cls,
        module: nn.Module | ExportedProgram,
        example_inputs: Any = None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        certify: bool | nn.Module = True,
        frozen: Collection[str] = (),
    ) -> WeightSpace:
        """The weight space of any network, its symmetries derived from the network's computation, and tested.

        The module is exported in eval mode (``torch.export``); every operator says which dimensions of its tensors are
        the same neurons, and which equations their scales and signs satisfy; the solutions are the gauges, see
        `derive`. Symmetries that an operator is not known to keep are left out, and `explain` names them. Then random
        group elements must not change the network's outputs, see `nfn_monomial.verify.certificate.certify`. That is a
        test; docs/any-network.md says what it cannot see.

        Args:
            module: any network that ``torch.export`` can trace; or an exported program.
            example_inputs: a tensor, or a tuple of all positional arguments. An exported program has a default: its
                example inputs.
            kwargs: further arguments of the call.
            certify: whether the group is tested, which takes a few forward passes in float64 on the CPU, and a copy of
                the weights. Without the test, a wrong rule of an operator goes unseen, and `explain` says so. In place
                of a large module, or of one on the meta device, which has no values, pass a narrower module of the same
                class, whose depth and names are the same: it is tested, on these inputs, which have to be on the CPU.
            frozen: names of parameters and buffers that stay as they are, such as the base of an adapter: they are left
                out of the space, and nothing acts on neurons along which they vary.

        Returns:
            A space with the names of the state dict: of all parameters that are used, tied ones once (``ties`` has
            their other names), and of running statistics and other buffers along which their neurons lie.

        Raises:
            TypeError: for anything that is no module.
            ValueError: if the module does not run on the example or cannot be exported, with what to do; for parameters
                that no group can act on; if the group does not keep the function, or that cannot be tested; if the
                narrower module has another group.

        >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> space = WeightSpace.from_module(net, torch.zeros(4, 2))
        >>> space.describe("2.weight"), space.group_dimension
        ('2.weight (B, C, 1, layer0=8)', 8)
        """
        from nfn_monomial.from_module import from_module

        return from_module(module, example_inputs, kwargs=kwargs, certify=certify, frozen=frozen)

    def to_json(self) -> dict[str, Any]:
        """Returns the constructor's arguments as JSON holds them; `from_json` is the exact inverse.

        The origin of a derived space, of which `explain` tells, is not kept.
        """
        return as_json.to_json(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The space that `to_json` has written. Every number is checked, and nothing of such a size is allocated.

        Raises:
            ValueError: naming the place, if it is anything else; as the class.

        >>> space = WeightSpace.mlp([2, 8, 1], "relu")
        >>> WeightSpace.from_json(space.to_json()) == space
        True
        """
        return cls(**as_json.from_json(value))

    def explain(self, *, full: bool = False) -> str:
        """The space in words: a table of its nodes, the group on each, the tensors there and their charges.

        For a space that `from_module` made, the text also says which operators each node runs through, which operator
        cost which symmetry and why, and which parameters do not matter or are not read. Repeated blocks are one line;
        if that does not fit two screens, blocks of other sizes share lines as well, unless it is to be ``full``. A full
        text names each parameter that is not read.
        """
        from nfn_monomial.report import explain

        return explain(self, self.origin, full=full)

    def draw(self) -> Drawing:
        """The space as an SVG picture: nodes on the left, the tensors that join them on the right, charges between.

        Tensors with one axis stand in their node's box. Notebooks show the picture; ``save(path)`` writes it.
        """
        from nfn_monomial.report import draw

        return draw(self)

    def mappings(self) -> list[SharedScale]:
        """Lists the parameters that share a scale: if one of them is multiplied by it, others are divided by it.

        One for each scale gauge of each node. Quantisers smooth activations along such maps; docs/quantisers.md.

        >>> from nfn_monomial import WeightSpace
        >>> [(scale.smooth, scale.balance) for scale in WeightSpace.mlp([2, 8, 1], "relu").mappings()]
        [(('weight.0', 'bias.0'), ('weight.1',))]
        """
        shares: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for place in self.places:
            gauges = zip(self.nodes[place.node].gauges, powers(place.charge), strict=True)
            for number, (gauge, power) in enumerate(gauges):
                if gauge.scales and power:
                    shares.setdefault((place.node, number), []).append((place.piece, power))
        sizes = {name: node.size for name, node in self.nodes.items() if node.size is not None}
        return [
            SharedScale(
                node,
                number,
                tuple(powers_of_pieces),
                self.count(node, sizes) if all(above in sizes for above in self.ancestry(node)) else None,
            )
            for (node, number), powers_of_pieces in shares.items()
        ]

    def ancestry(self, name: str) -> tuple[str, ...]:
        """A node after all that it is nested in, the outermost first."""
        return ancestry(self.nodes, name)

    def places_of(self, axes: Sequence[Axis | int]) -> tuple[Place, ...]:
        """The places of the axes of a field, or of any tensor."""
        return places_of(axes, self.nodes)

    def complete(self, axes: Iterable[Axis]) -> FieldType:
        """Axes with those that they are nested in, where none of these is among them, and charges for all gauges."""
        return tuple(a for a in flatten_dims(completed(tuple(axes), self.nodes)) if isinstance(a, Axis))

    def canonical(self, axes: Sequence[Axis]) -> tuple[FieldType, tuple[int, ...]]:
        """The field type of some axes (charges reduced, canonical order), and the order in which they were taken.

        Axes of nested nodes follow the axis that they are nested in, before the next axis of its node.
        """
        reduced = [Axis(a.node, self.nodes[a.node].charge(a.charge)) for a in axes]
        parents = [place.over[-1] if place.over else None for place in self.places_of(axes)]

        def subtree(i: int) -> tuple[tuple[object, ...], list[int]]:
            nested = sorted(subtree(j) for j, parent in enumerate(parents) if parent == i)
            key = (-self._rank[reduced[i].node], tuple(-q for q in powers(reduced[i].charge)))
            return (key, tuple(key for key, _ in nested)), [i, *(j for _, order in nested for j in order)]

        roots = sorted(subtree(i) for i, parent in enumerate(parents) if parent is None)
        order = tuple(i for _, taken in roots for i in taken)
        return tuple(reduced[i] for i in order), order

    def acting(self, axes: FieldType) -> tuple[Symmetry, ...]:
        """The part of its node's symmetry that each of some axes feels."""
        return tuple(self.nodes[axis.node].acting(axis.charge) for axis in axes)

    def lies_in_fields(self, name: str) -> bool:
        """False for FIXED nodes in which none are nested: their axes are multiplicity, and no axes of fields."""
        return self.nodes[name].permutes or name in self.nesting.values()

    @property
    def group_dimension(self) -> int:
        """Number of independent continuous scalings: scale gauges times neurons; needs every such node's size."""
        sizes = self.sizes()
        return sum(
            sum(gauge.scales for gauge in node.gauges) * self.count(name, sizes) for name, node in self.nodes.items()
        )

    def sizes(self) -> dict[str, int]:
        """Node -> its size; for a nested node, its size in each neuron of its parent.

        Raises:
            ValueError: if one is not known.
        """
        unknown = [name for name, node in self.nodes.items() if node.size is None]
        if unknown:
            raise InvalidValueError(
                f"{self}: sizes of {', '.join(unknown)} are not known; give them to the constructor"
            )
        return {name: node.size for name, node in self.nodes.items() if node.size is not None}

    def declared(self, sizes: Mapping[str, int] | None = None) -> dict[str, int | None]:
        """Node -> its size among ``sizes``, or else as declared.

        Raises:
            ValueError: for a size of a node that there is not.
        """
        if unknown := [name for name in sizes or {} if name not in self.nodes]:
            raise InvalidValueError(f"sizes= has {', '.join(unknown)}; nodes of {self}: {', '.join(self.nodes)}")
        return {name: node.size for name, node in self.nodes.items()} | dict(sizes or {})

    def count(self, name: str, sizes: Mapping[str, int]) -> int:
        """Number of a node's neurons in all: for a nested one, over all of its parent's."""
        return math.prod(sizes[node] for node in self.ancestry(name))

    def shape_of(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a parameter or a piece, without batch and channels, given the sizes of nodes."""
        dims = self.parameters[name] if name in self.parameters else self.pieces[name].dims
        return tuple([size_of(dim, sizes) for dim in dims])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, without batch and channels; needs every node's size."""
        sizes = self.sizes()
        return {name: self.shape_of(name, sizes) for name in self.parameters}

    def describe(self, name: str, sizes: Mapping[str, int] | None = None) -> str:
        """A parameter and the shape it is expected to have, as text."""
        known = self.declared(sizes)

        def text(dim: Axis | int) -> str:
            if isinstance(dim, int):
                return str(dim)
            return dim.node if known[dim.node] is None else f"{dim.node}={known[dim.node]}"

        def spelled(dim: Dim, shared: int) -> str:
            if not isinstance(dim, Sum):
                return "*".join(map(text, flatten_dims((dim,))[shared:])) or "1"
            inside = " + ".join(spelled(part, dim.shared) for part in dim.parts)
            lead = dim.lead[shared:]
            return "*".join((*map(text, lead), f"({inside})")) if lead else inside

        return f"{name} (B, C, {', '.join(spelled(dim, 0) for dim in self.parameters[name])})"

    def uncharged(self) -> WeightSpace:
        """The same tensors after `Canonicalize`: every axis has charge 0, so neurons are only permuted."""
        return self.once(WeightSpace._without_charges)

    def _without_charges(self) -> WeightSpace:
        neutral = {
            name: [each_axis(dim, lambda axis: [Axis(axis.node, 0)]) for dim in dims]
            for name, dims in self.parameters.items()
        }
        return self._regrouped(self.nodes, neutral, ".uncharged()")

    @checked
    def restricted(self, symmetry: SymmetryLike) -> WeightSpace:
        """The same tensors under a smaller group: every node's symmetry intersected with this one.

        ``space.restricted("sign")`` is the group that is left once scales are fixed (`balance`),
        ``restricted("permutation")`` once signs are, too.
        """
        group = Symmetry.coerce(symmetry)
        if not group.permutes:
            raise InvalidValueError(f"restricted({group}): hidden neurons cannot be FIXED; use PERMUTATION or more")
        nodes = {name: node.restricted(group) for name, node in self.nodes.items()}
        return self._regrouped(nodes, self.parameters, f".restricted({group})")

    @checked
    def fixed(self, *nodes: str) -> WeightSpace:
        """The same tensors under a smaller group, in which these nodes are FIXED, for layers that lack such nodes.

        A FIXED node of size 1 is no node any more: its axes are left out.

        Raises:
            ValueError: for a node that is none, is nested or has nested ones, or whose size is not known.
        """
        for name in nodes:
            if name not in self.nodes or name in self.nesting or name in self.nesting.values():
                raise InvalidValueError(f"fixed({name!r}): no node of {self} that is neither nested nor nests others")
            if self.nodes[name].size is None:
                raise InvalidValueError(f"fixed({name!r}): its size is not known, and its axes are to become channels")
        gone = {name for name in nodes if self.nodes[name].size == 1}
        left = {n: Node((Symmetry.FIXED,), m.size) if n in nodes else m for n, m in self.nodes.items() if n not in gone}

        def change(axis: Axis) -> list[Axis]:
            return [] if axis.node in gone else [Axis(axis.node, 0) if axis.node in nodes else axis]

        parameters = {name: tuple(each_axis(dim, change) for dim in dims) for name, dims in self.parameters.items()}
        return self._regrouped(left, parameters, f".fixed({', '.join(nodes)})")

    def _regrouped(
        self, nodes: Mapping[str, Node], parameters: Mapping[str, Sequence[Dim]], change: str
    ) -> WeightSpace:
        """The same tensors under another group: dead and tied parameters stay."""
        label = self.label and self.label.removesuffix(change) + change
        return WeightSpace(nodes, parameters, label=label, dead=self.dead, ties=self.ties)

    @checked
    def layout_of(self, types: Types = None, *, fold: bool = True) -> Layout:
        """The layout of features of any types on this space's nodes, e.g. hidden ones of charge 0 or -1.

        Args:
            types: field types, each an iterable of `Axis`; with the multiplicity of each, or 1. A layout stays as it
                is; None is the layout of the space's parameters.
            fold: whether axes take their canonical form: charges reduced to what their symmetries tell apart, in the
                order of the nodes, none of them FIXED (those are multiplicity). False keeps all as they are, FIXED
                axes in their places.

        Raises:
            ValueError: if an axis is on no node of the space, or is to be folded and FIXED.
        """
        return self.layout if types is None else layout_of(self, types, fold)

    def pack(self, tensors: Mapping[str, Tensor], *, check_finite: bool = True) -> Features:
        """Named parameters of a batch of networks -> `Features`, checked; `unpack` is the exact inverse.

        Args:
            tensors: parameter name -> ``(B, C, *shape)``: B networks, C channels.
            check_finite: look for NaN and infinities, in one pass over the tensors, where values can be looked at.

        Raises:
            ValueError: naming the tensor, the shape found and the shape expected, if names, ranks or sizes do not
                fit, there are no channels, or a value is not finite.
            TypeError: if tensors are not floating point, or not all of one dtype and device.
        """
        require(check_finite, bool, "pack: check_finite")
        sizes = packing.check_tensors(self, tensors)
        if check_finite:
            packing.require_finite(tensors)
        return self.folding.fold(list(packing.pieces(self, tensors, sizes).values()))

    def unpack(self, features: Features) -> dict[str, Tensor]:
        """`Features` -> parameter name -> tensor ``(B, C, *shape)``, views of the fields: not to be written into.

        Raises:
            ValueError: if the features are of another space.
        """
        self.layout.require(features, None, "unpack")
        pieces = dict(zip(self.pieces, self.folding.unfold(features), strict=True))
        return packing.whole(self, pieces, self.node_sizes(features))

    def node_sizes(self, features: Features) -> dict[str, int]:
        """Node name -> number of neurons in these features (FIXED nodes: as in the space)."""
        if not isinstance(features, Features):
            raise InvalidTypeError(f"node_sizes: Features are expected, found {shown(features)}")
        return {name: node.size for name, node in self.nodes.items() if node.size is not None} | features.sizes

    def validate(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise what `pack` would raise, without packing."""
        packing.check_tensors(self, tensors)
        packing.require_finite(tensors)

    @checked
    def sample(
        self,
        batch: Size | None = None,
        *,
        scale_range: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
        device: Device | None = None,
        sizes: Mapping[str, Size] | None = None,
    ) -> GroupElement:
        """A random element of the space's group, see `MonomialMatrix.random`.

        Args:
            batch: number of independent elements, one per network; None for a single one.
            scale_range: bounds of uniform scales; log-normal by default.
            generator: source of randomness, on ``device``.
            device: of the element.
            sizes: of nodes whose size the space does not know, or which are wider.
        """
        from .groups import random_element  # an element of a group knows the space whose group it is

        known = self.declared(sizes)
        return random_element(self, known, scale_range=scale_range, batch=batch, generator=generator, device=device)

    def once(self, make: Callable[..., Value], *arguments: Hashable) -> Value:
        """``make(self, *arguments)``, which all layers on the space share: made the first time, never to be changed."""
        key = (make, *arguments)
        if key not in self._kept:
            self._kept[key] = make(self, *arguments)
        return self._kept[key]  # type: ignore[no-any-return]

    def lately(self, make: Callable[..., Value], *arguments: Hashable) -> Value:
        """The same for arguments that may be many, as sizes of networks are: only the last ones stay."""
        value, key = self.once(make, *arguments), (make, *arguments)
        self._kept.pop(key, None)
        self._kept[key] = value  # the last one now
        alike = [other for other in list(self._kept) if other[0] is make]
        for other in alike[:-LATELY]:
            self._kept.pop(other, None)
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "passed": (None, {})}

    def _key(self) -> tuple[object, ...]:
        dead, ties = frozenset(self.dead), frozenset(self.ties.items())
        return tuple(self.nodes.items()), tuple(self.parameters.items()), dead, ties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightSpace) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        """As `repr`, or where that is long the numbers of nodes and tensors: for lines of models and messages."""
        text = repr(self)
        return text if len(text) <= 44 else f"WeightSpace({len(self.nodes)} nodes, {len(self.parameters)} tensors)"

    def __repr__(self) -> str:
        if self.label:
            return f"WeightSpace.{self.label}"
        nodes = []
        for name, node in self.nodes.items():
            size = f" {node.size}" if node.size else ""
            nodes.append(
                f"{name}: {'+'.join(map(str, node.gauges))}{size}{f' in {node.parent}' if node.parent else ''}"
            )
        return f"WeightSpace({', '.join(nodes)}; {', '.join(self.parameters)})"
