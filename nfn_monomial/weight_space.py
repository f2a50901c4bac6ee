"""Weight spaces: which parameters a network has, and on which nodes' neurons their axes run (paper Sec. 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from .features import Axis, Features, FieldType, Layout, field_name
from .groups import GroupElement, MonomialMatrix
from .symmetry import Activation, Symmetry

Dim: TypeAlias = "Axis | int | tuple[Axis | int, ...]"
SymmetryLike: TypeAlias = "Symmetry | Activation"


class Node(NamedTuple):
    """A set of neurons: the group that acts on it, and its size where it is known (always for FIXED)."""

    symmetry: Symmetry
    size: int | None = None


class _Segment(NamedTuple):
    """Where one parameter lies in its field, and how its dimensions are moved there."""

    name: str
    field: int
    offset: int
    multiplicity: int
    to_field: tuple[int, ...]
    to_parameter: tuple[int, ...]


class WeightSpace:
    """The parameters of a network architecture and the group that leaves its function unchanged.

    Immutable and hashable; it holds no tensors and knows no batch size. Sizes of hidden nodes are only a default
    for `sample`: packing checks that tensors agree with one another, so wider networks are welcome.

    Args:
        nodes: name -> `Symmetry`, or ``(symmetry, size)``; in order from the network's inputs to its outputs.
        parameters: name -> dimensions in tensor order. A dimension is an `Axis`, an int (a kernel dimension,
            which nothing acts on), or a tuple of those for one tensor dimension that is their row-major product
            (the columns of a linear layer after a flatten: ``(Axis("h3", -1), 9)``).

    Raises:
        ValueError: if an axis names an unknown node, a FIXED node has no size, or a name cannot be used.

    >>> space = WeightSpace.mlp([2, 32, 32, 1], "sin")
    >>> space
    WeightSpace.mlp(2-32-32-1, SIGN)
    >>> space.describe("weight.1")
    'weight.1 (B, C, h2=32, h1=32)'
    """

    def __init__(
        self,
        nodes: Mapping[str, Symmetry | tuple[Symmetry, int | None]],
        parameters: Mapping[str, Sequence[Dim]],
        *,
        _label: str = "",
    ) -> None:
        self.nodes = {
            name: Node(node) if isinstance(node, Symmetry) else Node(*node) for name, node in nodes.items()
        }
        self.parameters: dict[str, tuple[Dim, ...]] = {name: tuple(dims) for name, dims in parameters.items()}
        self._label = _label
        self._check()
        self._rank = {name: position for position, name in enumerate(self.nodes)}
        self._flat = {name: _flatten_dims(dims) for name, dims in self.parameters.items()}
        self.layout, self._segments = self._plan()

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
            for dim in _flatten_dims(dims):
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
        symmetry: SymmetryLike | Sequence[SymmetryLike] | None = None,
        *,
        example_input: Tensor | None = None,
    ) -> WeightSpace:
        """The weight space of a feed-forward network of linear and convolution layers, with the module's own names.

        Symmetries are read off the activations between the layers; a max-pooling keeps scalings and drops signs.

        Args:
            module: a network that runs its layers one after the other, nested containers allowed.
            symmetry: of the hidden nodes; needed where activations are plain function calls, which no one sees
                from outside.
            example_input: if given, the network is run once and layers count in the order in which they run;
                without it, in the order in which they were registered.

        Raises:
            ValueError: for a layer that is not supported or layers that do not follow one another.

        >>> WeightSpace.from_module(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))).describe("2.weight")
        '2.weight (B, C, y=1, h1=8)'
        """
        from .modules import chain_of

        chain = chain_of(module, example_input)
        return cls.sequential(
            chain.sizes,
            chain.kernels,
            chain.symmetries if symmetry is None else symmetry,
            bias=[b is not None for b in chain.biases],
            positions=chain.positions,
            names=list(zip(chain.weights, chain.biases, strict=True)),
        )

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
        neutral = {
            name: tuple(_map_dim(dim, lambda axis: Axis(axis.node, 0)) for dim in dims)
            for name, dims in self.parameters.items()
        }
        label = self._label if self._label.startswith("uncharged ") or not self._label else f"uncharged {self._label}"
        return WeightSpace(self.nodes, neutral, _label=label)

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
            canonical, _ = self._canonical(tuple(axes))
            total[canonical] = total.get(canonical, 0) + multiplicity
        acting = tuple(tuple(self.nodes[a.node].symmetry.acting(a.charge) for a in t) for t in total)
        return Layout(tuple(total), tuple(total.values()), acting)

    def _canonical(self, axes: Sequence[Axis]) -> tuple[FieldType, tuple[int, ...]]:
        """Reduced charges in the canonical order, and the order in which ``axes`` were taken."""
        reduced = [Axis(a.node, self.nodes[a.node].symmetry.charge(a.charge)) for a in axes]
        order = sorted(range(len(axes)), key=lambda i: (-self._rank[reduced[i].node], -reduced[i].charge))
        return tuple(reduced[i] for i in order), tuple(order)

    def _plan(self) -> tuple[Layout, tuple[_Segment, ...]]:
        totals: dict[FieldType, int] = {}
        segments = []
        for name, flat in self._flat.items():
            moving = [i for i, dim in enumerate(flat) if isinstance(dim, Axis) and self._moves(dim)]
            fixed = [i for i in range(len(flat)) if i not in moving]
            field_type, order = self._canonical([dim for i in moving if isinstance(dim := flat[i], Axis)])
            multiplicity = math.prod(self._extent(flat[i]) for i in fixed)
            offset = totals.get(field_type, 0)
            totals[field_type] = offset + multiplicity
            # (B, C, *flat) -> (B, *axes of the field, *fixed, C)
            to_field = (0, *(2 + moving[i] for i in order), *(2 + i for i in fixed), 1)
            inverse = tuple(to_field.index(i) for i in range(len(to_field)))
            segments.append(
                _Segment(name, list(totals).index(field_type), offset, multiplicity, to_field, inverse)
            )
        return self.layout_of(totals), tuple(segments)

    def _moves(self, axis: Axis) -> bool:
        return self.nodes[axis.node].symmetry.permutes

    def _extent(self, dim: Axis | int) -> int:
        size = dim if isinstance(dim, int) else self.nodes[dim.node].size
        assert size is not None, f"{dim} is FIXED, whose size is checked at construction"
        return size

    @property
    def segments(self) -> tuple[tuple[str, int, int, int], ...]:
        """For each parameter: name, index of its field in the layout, offset and multiplicity within the field."""
        return tuple((s.name, s.field, s.offset, s.multiplicity) for s in self._segments)

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
        sizes = self._validate(tensors)
        if check_finite and _concrete(tensors.values()):
            self.require_finite(tensors)
        parts: list[list[Tensor]] = [[] for _ in self.layout.types]
        for segment in self._segments:
            x = tensors[segment.name]
            flat = [d if isinstance(d, int) else sizes[d.node] for d in self._flat[segment.name]]
            x = x.reshape(x.shape[0], x.shape[1], *flat).permute(segment.to_field)
            axes = len(self.layout.types[segment.field])
            parts[segment.field].append(x.reshape(*x.shape[: 1 + axes], -1))
        return Features(self.layout, tuple(p[0] if len(p) == 1 else torch.cat(p, -1) for p in parts))

    def unpack(self, features: Features) -> dict[str, Tensor]:
        """`Features` -> parameter name -> tensor ``(B, C, *shape)``.

        Raises:
            ValueError: if the features are of another space.
        """
        if features.layout is not self.layout:
            raise ValueError(f"unpack: found features [{features.layout}], {self} has [{self.layout}]")
        sizes = self.node_sizes(features)
        channels = features.tensors[0].shape[-1] // self.layout.multiplicities[0]
        out: dict[str, Tensor] = {}
        for segment in self._segments:
            x = features.tensors[segment.field]
            if segment.multiplicity != self.layout.multiplicities[segment.field]:
                x = x.narrow(-1, segment.offset * channels, segment.multiplicity * channels)
            flat = [d if isinstance(d, int) else sizes[d.node] for d in self._flat[segment.name]]
            moved = [(x.shape[0], channels, *flat)[i] for i in segment.to_field]
            x = x.reshape(moved).permute(segment.to_parameter)
            out[segment.name] = x.reshape(*x.shape[:2], *self._shape(segment.name, sizes))
        return out

    def node_sizes(self, features: Features) -> dict[str, int]:
        """Node name -> number of neurons in these features (FIXED nodes: as in the space)."""
        sizes = {name: node.size for name, node in self.nodes.items() if node.size is not None}
        for field_type, x in features.fields.items():
            sizes.update({axis.node: x.shape[1 + i] for i, axis in enumerate(field_type)})
        return sizes

    def validate(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise what `pack` would raise, without packing."""
        self._validate(tensors)
        self.require_finite(tensors)

    def require_finite(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError naming the first parameter and network that hold NaN or infinity."""
        # One read of the data: NaN and infinities survive minimum and maximum.
        if all(bool(torch.isfinite(torch.stack(t.aminmax())).all()) for t in tensors.values()):
            return
        for name, t in tensors.items():
            bad = ~torch.isfinite(t)
            if bool(bad.any()):
                where = [int(i) for i in bad.nonzero()[0]]
                raise ValueError(
                    f"{name} holds {int(bad.sum())} NaN or infinite values, the first at index {where} (network "
                    f"{where[0]} of the batch). Drop networks whose training diverged"
                )

    def _validate(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        missing = [name for name in self.parameters if name not in tensors]
        extra = [name for name in tensors if name not in self.parameters]
        if missing or extra:
            raise ValueError(
                f"{self} has {len(self.parameters)} parameters, {len(tensors)} tensors given; "
                + (f"missing: {', '.join(missing)}. " if missing else "")
                + (f"not in the space: {', '.join(extra)}. " if extra else "")
                + f"Expected: {', '.join(map(self.describe, self.parameters))}"
            )
        first = next(iter(self.parameters))
        lead = tuple(tensors[first].shape[:2])
        sizes: dict[str, int] = {n: s.size for n, s in self.nodes.items() if not s.symmetry.permutes and s.size}
        seen_in: dict[str, str] = {}
        for name, flat in self._flat.items():
            x = tensors[name]
            if not x.is_floating_point():
                raise TypeError(f"{name} has dtype {x.dtype}; floating point is expected: tensor.float()")
            if (x.dtype, x.device) != (tensors[first].dtype, tensors[first].device):
                raise TypeError(
                    f"{name} is {x.dtype} on {x.device} but {first} is {tensors[first].dtype} on "
                    f"{tensors[first].device}; convert all tensors to one dtype and device"
                )
            if x.ndim != 2 + len(self.parameters[name]):
                raise ValueError(
                    f"{name} has {x.ndim} dimensions {tuple(x.shape)} but the space expects {self.describe(name)}; "
                    "for a single network without channels add them: tensor[None, None]"
                )
            if tuple(x.shape[:2]) != lead:
                raise ValueError(
                    f"{name} has batch and channels {tuple(x.shape[:2])} but {first} has {lead}: all parameters "
                    "need the same number of networks and of channels"
                )
            if 0 in lead:
                raise ValueError(f"{name} has shape {tuple(x.shape)}: an empty batch; at least one network is needed")
            split, axes = self.split_shape(name, tuple(x.shape[2:]), sizes, seen_in)
            for extent, axis in zip(split, axes, strict=True):
                if isinstance(axis, Axis) and axis.node not in sizes:
                    sizes[axis.node] = extent
                    seen_in[axis.node] = name
        return sizes

    def split_shape(
        self,
        name: str,
        shape: tuple[int, ...],
        sizes: Mapping[str, int],
        seen_in: Mapping[str, str] | None = None,
    ) -> tuple[list[int], tuple[Axis | int, ...]]:
        """A parameter's shape with folded dimensions split up, checked against known node sizes.

        Returns:
            The extents, and the axis or kernel size that each belongs to.
        """
        dims = self.parameters[name]
        flat = self._flat[name]
        split: list[int] = []
        for extent, dim in zip(shape, dims, strict=True):
            parts = dim if isinstance(dim, tuple) and not isinstance(dim, Axis) else (dim,)
            known = [p if isinstance(p, int) else sizes.get(p.node) for p in parts]
            if known.count(None) == 1:  # a node seen for the first time: what is left of the extent is its size
                rest = math.prod(k for k in known if k is not None)
                if extent % rest == 0 and extent:
                    known = [extent // rest if k is None else k for k in known]
            if None in known or math.prod(k or 0 for k in known) != extent:
                raise ValueError(self._size_error(name, shape, parts, extent, sizes, seen_in or {}))
            split.extend(k for k in known if k is not None)
        return split, flat

    def _size_error(
        self,
        name: str,
        shape: tuple[int, ...],
        parts: Sequence[Axis | int],
        extent: int,
        sizes: Mapping[str, int],
        seen_in: Mapping[str, str],
    ) -> str:
        reasons = []
        for part in parts:
            if isinstance(part, int):
                reasons.append(f"{'kernel size' if len(parts) == 1 else 'folded positions'} {part}")
            elif part.node in sizes:
                source = f" in {seen_in[part.node]}" if part.node in seen_in else ""
                reasons.append(f"axis '{part.node}' is {sizes[part.node]}{source}")
            else:
                reasons.append(f"axis '{part.node}'")
        return (
            f"{name} has shape {shape} (after batch and channels) but the space expects "
            f"{self.describe(name, sizes)}: {' times '.join(reasons)}, and {extent} here. Was this network made with "
            f"a different width or kernel? Space: {self}"
        )

    def _shape(self, name: str, sizes: Mapping[str, int]) -> list[int]:
        shape = []
        for dim in self.parameters[name]:
            parts = _flatten_dims((dim,))
            shape.append(math.prod(p if isinstance(p, int) else sizes[p.node] for p in parts))
        return shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, without batch and channels; needs every node's size."""
        unknown = [name for name, node in self.nodes.items() if node.size is None]
        if unknown:
            raise ValueError(f"{self}: sizes of {', '.join(unknown)} are not known; give them to the constructor")
        sizes = {name: node.size for name, node in self.nodes.items() if node.size is not None}
        return {name: tuple(self._shape(name, sizes)) for name in self.parameters}

    def describe(self, name: str, sizes: Mapping[str, int] | None = None) -> str:
        """A parameter and the shape it is expected to have, as text."""
        known = {n: s.size for n, s in self.nodes.items()} | dict(sizes or {})

        def text(dim: Axis | int) -> str:
            if isinstance(dim, int):
                return str(dim)
            return dim.node if known[dim.node] is None else f"{dim.node}={known[dim.node]}"

        shown = ["*".join(map(text, _flatten_dims((dim,)))) for dim in self.parameters[name]]
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
            return f"WeightSpace.{self._label}" if not self._label.startswith("unch") else f"WeightSpace({self._label})"
        nodes = ", ".join(f"{n}: {s.symmetry}" + (f" {s.size}" if s.size else "") for n, s in self.nodes.items())
        return f"WeightSpace({nodes}; {', '.join(self.parameters)})"


def _flatten_dims(dims: Iterable[Dim]) -> tuple[Axis | int, ...]:
    flat: list[Axis | int] = []
    for dim in dims:
        if isinstance(dim, tuple) and not isinstance(dim, Axis):
            flat.extend(dim)
        else:
            flat.append(dim)
    return tuple(flat)


def _map_dim(dim: Dim, fn: Any) -> Dim:
    if isinstance(dim, Axis):
        return fn(dim)  # type: ignore[no-any-return]
    return tuple(fn(p) if isinstance(p, Axis) else p for p in dim) if isinstance(dim, tuple) else dim


def _one_per(value: SymmetryLike | Sequence[SymmetryLike], count: int, what: str) -> list[Symmetry]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise ValueError(f"{len(value)} symmetries for {count} {what}s; give one, or one per {what}")
        return [Symmetry.coerce(v) for v in value]
    return [Symmetry.coerce(value)] * count


def _concrete(tensors: Iterable[Tensor]) -> bool:
    """Whether values can be looked at: not compiling, not under a torch.func transform, no fake tensors."""
    if torch.compiler.is_compiling():
        return False
    return not any(torch._C._functorch.is_functorch_wrapped_tensor(t) or t.is_meta for t in tensors)
