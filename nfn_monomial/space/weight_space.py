"""Weight spaces: which parameters a network has, and on which nodes' neurons their axes run (paper Sec. 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial.space import packing
from nfn_monomial.symmetry import Activation, Symmetry

from .certificate import certify
from .chain import chain_of
from .features import Axis, Features, FieldType, Layout, field_name
from .groups import GroupElement, MonomialMatrix
from .links import links_of

Dim: TypeAlias = "Axis | int | tuple[Axis | int, ...]"
SymmetryLike: TypeAlias = "Symmetry | Activation"


class Node(NamedTuple):
    """A set of neurons: the group that acts on it, and its size where it is known (always for FIXED)."""

    symmetry: Symmetry
    size: int | None = None


class WeightSpace:
    """The parameters of a network architecture and the group that leaves its function unchanged.

    Immutable and hashable; it holds no tensors and knows no batch size. Sizes of hidden nodes are only a default
    for `sample`: packing checks that tensors agree with one another, so wider networks are welcome.

    Args:
        nodes: name -> `Symmetry`, or ``(symmetry, size)``; in order from the network's inputs to its outputs.
        parameters: name -> dimensions in tensor order. A dimension is an `Axis`, an int (a kernel dimension,
            which nothing acts on), or a tuple of those for one tensor dimension that is their row-major product
            (the columns of a linear layer after a flatten: ``(Axis("h3", -1), 9)``).

    Attributes:
        axes: parameter -> its axes and the sizes of its other dimensions, dimensions that are products taken apart.
        links: which parameter leads from which node to which, see `Link`.
        layout: of its `Features`.

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

    def __init__(
        self,
        nodes: Mapping[str, Symmetry | tuple[Symmetry, int | None]],
        parameters: Mapping[str, Sequence[Dim]],
        *,
        _label: str = "",
    ) -> None:
        self.nodes = {name: Node(node) if isinstance(node, Symmetry) else Node(*node) for name, node in nodes.items()}
        self.parameters: dict[str, tuple[Dim, ...]] = {name: tuple(dims) for name, dims in parameters.items()}
        self._label = _label
        self._check()
        self._rank = {name: position for position, name in enumerate(self.nodes)}
        self.axes = {name: packing.flatten_dims(dims) for name, dims in self.parameters.items()}
        folded = {name: len(self.axes[name]) != len(dims) for name, dims in self.parameters.items()}
        self.links = links_of(self.nodes, self.axes, folded)
        types, self.segments = packing.plan_segments(self)
        self.layout = self.layout_of(types)

    def _check(self) -> None:
        for name, node in self.nodes.items():
            if not name.isidentifier():
                raise ValueError(f"node name {name!r}: names must be identifiers, as h1 or conv_2")
            if not node.symmetry.permutes and node.size is None:
                raise ValueError(f"node {name!r} is FIXED, so its size must be given: its axes become channels")
            if node.size is not None and node.size < 1:
                raise ValueError(f"node {name!r} has size {node.size}; at least 1 is needed")
        if not self.parameters:
            raise ValueError("a weight space needs at least one parameter")
        for name, dims in self.parameters.items():
            for dim in packing.flatten_dims(dims):
                if isinstance(dim, Axis) and dim.node not in self.nodes:
                    raise ValueError(f"{name}: axis {dim} names no node; nodes: {', '.join(self.nodes)}")
                if isinstance(dim, int) and dim < 1:
                    raise ValueError(f"{name}: dimension {dim} must be at least 1")

    # -- constructors ---------------------------------------------------------------------------------------------

    @classmethod
    def mlp(
        cls,
        sizes: Sequence[int],
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
            io_symmetry: of inputs and outputs. FIXED is HNP's and the paper's convention; PERMUTATION gives NP.
        """
        if len(sizes) < 2:
            raise ValueError(f"mlp needs at least input and output size, found {list(sizes)}")
        return cls.sequential(list(sizes), [()] * (len(sizes) - 1), symmetry, bias=bias, io_symmetry=io_symmetry)

    @classmethod
    def cnn(
        cls,
        channels: Sequence[int],
        kernel_sizes: int | Sequence[int | Sequence[int]],
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        head: Sequence[int] = (),
        *,
        ndim: int = 2,
        positions: int = 1,
        bias: bool | Sequence[bool] = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> WeightSpace:
        """Convolutions, then global pooling or flatten, then linear layers (paper Eq. cnn-equation).

        Args:
            channels: ``[c_0, ..., c_K]`` of the convolutions, input channels first.
            kernel_sizes: one, or one per convolution; an int is a cube in ``ndim`` dimensions.
            symmetry: of the hidden nodes, one or one per node, convolutions first.
            head: sizes of the linear layers after the convolutions, outputs last. Empty: all convolutional.
            ndim: spatial dimensions of the kernels given as an int (1, 2 or 3).
            positions: spatial positions that reach the first linear layer: 1 after global pooling, height x width
                after a flatten.
            bias: whether layers have biases, one or one per layer.
            io_symmetry: of the input channels and the outputs.

        >>> WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
        WeightSpace.cnn(1-16-16-16-10, SCALE)
        """
        count = len(channels) - 1
        if count < 1:
            raise ValueError(f"cnn needs at least two channel numbers, found {list(channels)}; without any use mlp")
        kernels = [kernel_sizes] * count if isinstance(kernel_sizes, int) else list(kernel_sizes)
        if len(kernels) != count:
            raise ValueError(f"{len(kernels)} kernel sizes for {count} convolutions")
        shapes = [(k,) * ndim if isinstance(k, int) else tuple(k) for k in kernels] + [()] * len(head)
        fold = {count: positions} if head else {}
        sizes = [*channels, *head]
        return cls.sequential(sizes, shapes, symmetry, bias=bias, io_symmetry=io_symmetry, positions=fold)

    @classmethod
    def from_network_spec(
        cls,
        network_spec: Any,
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        *,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
    ) -> WeightSpace:
        """The weight space of an ``nfn.common.NetworkSpec`` (sizes of -1 are unknown), as ``weight.i``, ``bias.i``.

        Raises:
            ValueError: if the spec's layers do not fit together, or an input or output size is unknown (-1)
                although its node is FIXED.
        """
        shapes = [tuple(spec.shape) for spec in network_spec.weight_spec]
        biases = [spec is not None for spec in network_spec.bias_spec]
        if not shapes or len(shapes) != len(biases):
            raise ValueError(f"network spec with {len(shapes)} weights and {len(biases)} biases")
        sizes: list[int | None] = [None if shapes[0][1] == -1 else shapes[0][1]]
        fold: dict[int, int] = {}
        for i, shape in enumerate(shapes):
            if len(shape) < 2:
                raise ValueError(f"weight_spec[{i}] has shape {shape}; (out, in, *kernel) is expected")
            rows, columns, known = shape[0], shape[1], sizes[-1]
            if known is not None and columns != -1 and columns != known:
                if columns % known:
                    raise ValueError(
                        f"weight_spec[{i}] has {columns} columns but weight_spec[{i - 1}] has {known} rows: the "
                        "layers do not follow one another, nor by a flatten, whose columns would be a multiple"
                    )
                fold[i] = columns // known
            sizes.append(None if rows == -1 else rows)
        return cls.sequential(
            sizes, [s[2:] for s in shapes], symmetry, bias=biases, io_symmetry=io_symmetry, positions=fold
        )

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        example_input: Tensor | None = None,
        *,
        symmetry: SymmetryLike | Sequence[SymmetryLike] | None = None,
    ) -> WeightSpace:
        """The weight space of a feed-forward network of linear and convolution layers, with the module's own names.

        Symmetries are read off the activations between the layers; a max-pooling keeps scalings and drops signs.

        Args:
            module: a network that runs its layers one after the other, nested containers allowed.
            example_input: if given, layers count in the order in which they run, and the outcome is checked: random
                group elements must leave alone what the network computes, see `certify`. Without it they count in the
                order in which they were registered, and **nothing is checked**: a residual connection in a forward of
                the network's own goes unseen.
            symmetry: of the hidden nodes; needed where activations are plain function calls, which no one sees
                from outside.

        Raises:
            ValueError: for a layer that is not supported or layers that do not follow one another; if the group does
                not preserve the function; without an example, for forward hooks.

        >>> WeightSpace.from_module(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))).describe("2.weight")
        '2.weight (B, C, y=1, h1=8)'
        """
        chain = chain_of(module, example_input)
        space = cls.sequential(
            chain.sizes,
            chain.kernels,
            chain.symmetries if symmetry is None else symmetry,
            bias=[b is not None for b in chain.biases],
            positions=chain.positions,
            names=list(zip(chain.weights, chain.biases, strict=True)),
        )
        if example_input is not None:
            certify(module, example_input, space.sample)
        return space

    @classmethod
    def sequential(
        cls,
        sizes: Sequence[int | None],
        kernels: Sequence[Sequence[int]],
        symmetry: SymmetryLike | Sequence[SymmetryLike],
        *,
        bias: bool | Sequence[bool] = True,
        io_symmetry: SymmetryLike = Symmetry.FIXED,
        positions: Mapping[int, int] | None = None,
        names: Sequence[tuple[str, str | None]] | None = None,
    ) -> WeightSpace:
        """Any chain of layers: what `mlp`, `cnn`, `from_network_spec` and `from_module` build on.

        Args:
            sizes: ``L + 1`` node sizes; None for a hidden size that is not known.
            kernels: ``L`` kernel shapes, ``()`` for a linear layer.
            symmetry: of the hidden nodes, one or one per node.
            bias: one, or one per layer.
            io_symmetry: of the first and the last node.
            positions: layer index -> spatial positions folded into that layer's columns by a flatten.
            names: ``L`` pairs (weight name, bias name); ``weight.i`` and ``bias.i`` by default.
        """
        depth = len(sizes) - 1
        hidden = _one_per(symmetry, depth - 1, "hidden node")
        has_bias = [bias] * depth if isinstance(bias, bool) else list(bias)
        if len(has_bias) != depth or len(kernels) != depth:
            raise ValueError(f"{len(has_bias)} bias flags and {len(kernels)} kernels for {depth} layers")
        io = Symmetry.coerce(io_symmetry)
        node_names = ["x", *(f"h{i}" for i in range(1, depth)), "y"]
        nodes = {n: Node(s, size) for n, s, size in zip(node_names, [io, *hidden, io], sizes, strict=True)}
        parameters: dict[str, tuple[Dim, ...]] = {}
        for i in range(depth):
            weight, bias_name = names[i] if names else (f"weight.{i}", f"bias.{i}")
            rows, columns = Axis(node_names[i + 1], +1), Axis(node_names[i], -1)
            folded = (positions or {}).get(i, 1)
            parameters[weight] = (rows, columns if folded == 1 else (columns, folded), *kernels[i])
            if has_bias[i] and bias_name is not None:
                parameters[bias_name] = (rows,)
        kind = "cnn" if any(kernels) else "mlp"
        distinct = list(dict.fromkeys(map(str, hidden)))
        shown = "/".join(distinct if len(distinct) < 2 else map(str, hidden)) or "no hidden layer"
        label = f"{kind}({'-'.join('?' if n is None else str(n) for n in sizes)}, {shown})"
        return cls(nodes, parameters, _label=label)

    def uncharged(self) -> WeightSpace:
        """The same tensors after `Canonicalize`: every axis has charge 0, so neurons are only permuted."""
        neutral = {name: tuple(_neutral(dim) for dim in dims) for name, dims in self.parameters.items()}
        label = self._label and self._label.removesuffix(".uncharged()") + ".uncharged()"
        return WeightSpace(self.nodes, neutral, _label=label)

    def restricted(self, symmetry: SymmetryLike) -> WeightSpace:
        """The same tensors under a smaller group: every node's symmetry intersected with this one.

        ``space.restricted("sign")`` is what is left once scales are fixed (`balance`), ``restricted("permutation")``
        once signs are, too.
        """
        group = Symmetry.coerce(symmetry)
        if not group.permutes:
            raise ValueError(
                f"restricted({group}): hidden neurons cannot be FIXED without sizes; use PERMUTATION or more"
            )
        nodes = {name: Node(node.symmetry & group, node.size) for name, node in self.nodes.items()}
        label = self._label and f"{self._label}.restricted({group})"
        return WeightSpace(nodes, self.parameters, _label=label)

    # -- layout ---------------------------------------------------------------------------------------------------

    def layout_of(self, types: Mapping[FieldType, int] | Iterable[FieldType]) -> Layout:
        """The layout of features of any types on this space's nodes, e.g. hidden ones of charge 0 or -1.

        Args:
            types: field types, each an iterable of `Axis`; with the multiplicity of each, or 1.
        """
        counted = dict(types) if isinstance(types, Mapping) else dict.fromkeys(types, 1)
        total: dict[FieldType, int] = {}
        for axes, multiplicity in counted.items():
            for axis in axes:
                if axis.node not in self.nodes:
                    raise ValueError(f"field [{field_name(axes)}]: no node {axis.node!r} in {self}")
                if not self.nodes[axis.node].symmetry.permutes:
                    raise ValueError(
                        f"field [{field_name(axes)}]: node {axis.node!r} is FIXED; its axes are multiplicity"
                    )
            canonical, _ = self.canonical(tuple(axes))
            total[canonical] = total.get(canonical, 0) + multiplicity
        acting = tuple(tuple(self.nodes[a.node].symmetry.acting(a.charge) for a in t) for t in total)
        return Layout(tuple(total), tuple(total.values()), acting)

    def canonical(self, axes: Sequence[Axis]) -> tuple[FieldType, tuple[int, ...]]:
        """The field type of some axes (charges reduced, canonical order), and the order in which they were taken."""
        reduced = [Axis(a.node, self.nodes[a.node].symmetry.charge(a.charge)) for a in axes]
        order = sorted(range(len(axes)), key=lambda i: (-self._rank[reduced[i].node], -reduced[i].charge))
        return tuple(reduced[i] for i in order), tuple(order)

    # -- tensors in and out ---------------------------------------------------------------------------------------

    def pack(self, tensors: Mapping[str, Tensor], *, check_finite: bool = True) -> Features:
        """Named parameters of a batch of networks -> `Features`, checked; `unpack` is the exact inverse.

        Args:
            tensors: parameter name -> ``(B, C, *shape)``: B networks, C channels.
            check_finite: look for NaN and infinities, at the price of one pass over the tensors. Skipped while
                compiling or under ``torch.func`` transforms, where values cannot be looked at.

        Raises:
            ValueError: naming the tensor, the shape found and the shape expected, if names, ranks or sizes do not
                fit, the batch is empty, or a value is not finite.
            TypeError: if tensors are not floating point, or not all of one dtype and device.
        """
        return packing.pack(self, tensors, check_finite)

    def unpack(self, features: Features) -> dict[str, Tensor]:
        """`Features` -> parameter name -> tensor ``(B, C, *shape)``.

        Raises:
            ValueError: if the features are of another space.
        """
        return packing.unpack(self, features)

    def node_sizes(self, features: Features) -> dict[str, int]:
        """Node name -> number of neurons in these features (FIXED nodes: as in the space)."""
        sizes = {name: node.size for name, node in self.nodes.items() if node.size is not None}
        for field_type, x in features.fields.items():
            sizes.update({axis.node: x.shape[1 + i] for i, axis in enumerate(field_type)})
        return sizes

    def validate(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise what `pack` would raise, without packing."""
        packing.check_tensors(self, tensors)
        packing.require_finite(tensors)

    def shape_of(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """A parameter's shape, without batch and channels, for given node sizes."""
        parts = [packing.flatten_dims((dim,)) for dim in self.parameters[name]]
        return tuple([math.prod([p if isinstance(p, int) else sizes[p.node] for p in dim]) for dim in parts])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, without batch and channels; needs every node's size."""
        unknown = [name for name, node in self.nodes.items() if node.size is None]
        if unknown:
            raise ValueError(f"{self}: sizes of {', '.join(unknown)} are not known; give them to the constructor")
        sizes = {name: node.size for name, node in self.nodes.items() if node.size is not None}
        return {name: self.shape_of(name, sizes) for name in self.parameters}

    def describe(self, name: str, sizes: Mapping[str, int] | None = None) -> str:
        """A parameter and the shape it is expected to have, as text."""
        known = {n: s.size for n, s in self.nodes.items()} | dict(sizes or {})

        def text(dim: Axis | int) -> str:
            if isinstance(dim, int):
                return str(dim)
            return dim.node if known[dim.node] is None else f"{dim.node}={known[dim.node]}"

        shown = ["*".join(map(text, packing.flatten_dims((dim,)))) for dim in self.parameters[name]]
        return f"{name} (B, C, {', '.join(shown)})"

    # -- the group ------------------------------------------------------------------------------------------------

    def sample(
        self,
        batch: int | None = None,
        *,
        scale_range: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> GroupElement:
        """A random element of the space's group, see `MonomialMatrix.random`.

        Args:
            batch: number of independent elements, one per network; None for a single one.
            scale_range: bounds of uniform scales; log-normal by default.
            generator: source of randomness, on ``device``.
            device: of the element.
            sizes: of nodes whose size the space does not know, or which are wider.
        """
        matrices = {}
        for name, node in self.nodes.items():
            if not node.symmetry.permutes:
                continue
            n = (sizes or {}).get(name, node.size)
            if n is None:
                raise ValueError(f"sample: the size of node {name!r} is not known; give sizes={{{name!r}: n}}")
            matrices[name] = MonomialMatrix.random(
                n, node.symmetry, scale_range, batch=batch, generator=generator, device=device
            )
        return GroupElement(self, matrices)

    # -- identity -------------------------------------------------------------------------------------------------

    def _key(self) -> tuple[object, ...]:
        return tuple(self.nodes.items()), tuple(self.parameters.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightSpace) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self._label:
            return f"WeightSpace.{self._label}"
        nodes = ", ".join(f"{n}: {s.symmetry}" + (f" {s.size}" if s.size else "") for n, s in self.nodes.items())
        return f"WeightSpace({nodes}; {', '.join(self.parameters)})"


def _neutral(dim: Dim) -> Dim:
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Axis):
        return Axis(dim.node, 0)
    return tuple(part if isinstance(part, int) else Axis(part.node, 0) for part in dim)


def _one_per(value: SymmetryLike | Sequence[SymmetryLike], count: int, what: str) -> list[Symmetry]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise ValueError(f"{len(value)} symmetries for {count} {what}s; give one, or one per {what}")
        return [Symmetry.coerce(v) for v in value]
    return [Symmetry.coerce(value)] * count
