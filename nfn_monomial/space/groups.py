"""Elements of the group that acts on a whole network: a monomial matrix for every node (paper Sec. 4.2)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor

from nfn_monomial.checks import checked, is_dense, shown
from nfn_monomial.errors import InvalidTypeError, InvalidValueError

from .axes import field_name, flatten_dims
from .features import Features, Layout
from .monomial import MonomialMatrix, within_range
from .nodes import Node
from .packing import concrete, cut, joined, sizes_in
from .places import Place
from .weight_space import WeightSpace


class GroupElement:
    """One element of a weight space's group, or a batch of them: a monomial matrix for every node.

    Composes (``g @ h``), inverts and acts on networks and on features; ``(g @ h).act(x) == g.act(h.act(x))``.

    Args:
        space: the weight space whose group it belongs to.
        matrices: node name -> matrix. Nodes left out get the identity. The matrix of a nested node is on all its
            neurons, those in the parent's first neuron first, and leaves each in the same neuron of the parent; when
            those move, it moves along.

    Raises:
        ValueError: if a matrix is not in the group of its node (a negative scale for SCALE, any scale for
            PERMUTATION, anything but the identity for FIXED), or a node is unknown.
    """

    __array_ufunc__: None = None  # or numpy would take a product with an array apart

    @checked
    def __init__(self, space: WeightSpace, matrices: Mapping[str, MonomialMatrix]) -> None:
        for name, matrix in matrices.items():
            if name not in space.nodes:
                raise InvalidValueError(f"no node {name!r} in {space}; nodes: {', '.join(space.nodes)}")
            _require_member(name, matrix, space.nodes[name])
        self.space = space
        self.matrices = dict(matrices)
        for name, matrix in matrices.items():
            if space.nodes[name].parent is None:
                continue
            blocks = self._blocks(name)
            if matrix.size % blocks:
                raise InvalidValueError(
                    f"node {name!r} has {matrix.size} neurons, which do not lie evenly in {blocks} of its parent"
                )
            size = matrix.size // blocks
            known = matrix.permutes and concrete((matrix.permutation,))
            if known and not torch.equal(matrix.permutation // size, matrix.places // size):
                raise InvalidValueError(
                    f"node {name!r} is nested: its matrix must leave each neuron in the one that it lies in"
                )

    def __matmul__(self, other: GroupElement) -> GroupElement:
        if not isinstance(other, GroupElement):
            return NotImplemented
        if self.space.nodes != other.space.nodes:
            raise InvalidValueError(
                f"group elements of different spaces do not compose: {self.space!r} and {other.space!r}"
            )
        product = dict(self.matrices)
        for name, matrix in other.matrices.items():
            motion = self._motion(name, matrix.size)
            moved = matrix if motion is None else matrix.moved_by(motion)
            product[name] = product[name] @ moved if name in product else moved
        return GroupElement(self.space, product)

    def inverse(self) -> GroupElement:
        """The inverse element."""
        inverted = {}
        for name, matrix in self.matrices.items():
            motion = self._motion(name, matrix.size)
            inverted[name] = matrix.inverse() if motion is None else matrix.inverse().moved_by(motion.inverse())
        return GroupElement(self.space, inverted)

    def _motion(self, name: str, count: int) -> MonomialMatrix | None:
        """The motion of a node's ``count`` neurons along with those that they are nested in; None without any."""
        parent = self.space.nodes[name].parent
        if parent is None:
            return None
        if parent not in self.matrices:
            above = next((a for a in reversed(self.space.ancestry(parent)) if a in self.matrices), None)
            if above is not None:
                raise InvalidValueError(
                    f"{self.space}: the element has a matrix for {name!r} and {above!r}, none for {parent!r}"
                )
            return None
        motion = self.matrices[parent].motion
        along = self._motion(parent, motion.size)
        return (motion if along is None else motion @ along).lifted(count // motion.size)

    def proper(self) -> GroupElement:
        """The element with every matrix moved off the identity: it permutes (n > 1) and has both signs (n > 1)."""
        matrices = {}
        for name, m in self.matrices.items():
            node, permutation = self.space.nodes[name], m.permutation.clone()
            if node.permutes:
                trivial = (permutation == m.places).all(-1, keepdim=True)
                permutation = torch.where(trivial, _rolled(permutation, self._blocks(name)), permutation)
            scales = [scale.clone() for scale in m.scales]
            for gauge, scale in zip(node.gauges, scales, strict=True):
                if gauge.flips:
                    one_sign = (scale > 0).all(-1) if m.size == 1 else (scale > 0).all(-1) | (scale < 0).all(-1)
                    scale[..., 0] = torch.where(one_sign, -scale[..., 0], scale[..., 0])
            matrices[name] = MonomialMatrix(scales, permutation)
        return GroupElement(self.space, matrices)

    def cyclic(self) -> GroupElement:
        """The element with permutations that leave no part of a node's neurons in its place: one cycle of all of them.

        The neurons of a nested node are permuted in one cycle in each neuron of the parent.
        """
        matrices = {}
        for name, m in self.matrices.items():
            cycle = MonomialMatrix(torch.ones_like(m.scales[0]), _rolled(m.places, self._blocks(name)))
            turned = cycle.moved_by(m.motion).permutation if m.permutes else m.permutation
            matrices[name] = MonomialMatrix(m.scales, turned, m.permutes)
        return GroupElement(self.space, matrices)

    def _blocks(self, name: str) -> int:
        """Number of the parent's neurons in which a node's neurons lie."""
        above = self.space.nodes[name].parent
        if above in self.matrices:
            return self.matrices[above].size
        return 1 if above is None or self.space.nodes[above].permutes else self.space.nodes[above].size or 1

    @overload
    def act(self, tensors: Features) -> Features: ...
    @overload
    def act(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def act(self, tensors: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """The action of paper Def. 4.2, on every axis with that axis' charge.

        Args:
            tensors: parameter name -> tensor ``(..., *shape)`` with any leading dimensions (a state dict, or a
                batch ``(B, C, *shape)``), or `Features`. For a batch of elements, dimension 0 is the batch.
                Names that are no parameters of the space are passed through, except for other names of tied ones. So
                parameters that the module does not read on its example, such as the heads of other tasks, stay as they
                are: if they read neurons that are moved, the outputs of these heads change.

        Returns:
            Features or named tensors, as the input; it is not written to.

        Raises:
            ValueError: for sizes that do not fit, naming the tensor; for float16 tensors, where an entry would be
                larger than float16 holds and values can be looked at.
        """
        if isinstance(tensors, Features):
            self._require_layout(tensors.layout)
            moved_fields = []
            for field, x in tensors.fields.items():
                move = functools.partial(self._moved, places=self.space.places_of(field), leading=1)
                moved_fields.append(within_range(f"[{field_name(field)}]", x, move))
            return Features(tensors.layout, tuple(moved_fields))
        if not isinstance(tensors, Mapping):
            raise InvalidTypeError(f"named tensors or Features are expected, found {shown(tensors)}")
        out = {}
        moved: dict[tuple[str, int], Tensor] = {}  # one tensor under two names stays one
        for name, tensor in tensors.items():
            parameter = self.space.ties.get(name, name)
            if parameter in self.space.parameters and (parameter, id(tensor)) not in moved:
                moved[parameter, id(tensor)] = self._act_parameter(parameter, tensor)
            out[name] = moved.get((parameter, id(tensor)), tensor)
        return out

    def _require_layout(self, layout: Layout) -> None:
        """Raises for features of another space: fields that look alike do not make their neurons the same."""
        if layout is self.space.layout:
            return
        nodes, axes = self.space.nodes, self.space.axes
        named = {name: flatten_dims(dims) for name, _, _, dims in layout.content}
        fits = not named or ({n: len(dims) for n, dims in named.items()} == {n: len(dims) for n, dims in axes.items()})
        for name in named if fits else ():
            for axis, expected in zip(named[name], axes[name], strict=True):
                fits = fits and (isinstance(axis, int) or isinstance(expected, int) or axis.node == expected.node)
        for field_type, acting in zip(layout.types, layout.acting, strict=True):
            for axis, felt in zip(field_type, acting, strict=True):
                fits = fits and axis.node in nodes and nodes[axis.node].acting(axis.charge) <= felt
        if not fits:
            raise InvalidValueError(
                f"an element of the group of {self.space} cannot act on features of another space, [{layout}]: sample "
                "it from the space that packed them"
            )

    def _act_parameter(self, name: str, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, Tensor) or not is_dense(tensor) or not tensor.is_floating_point():
            raise InvalidTypeError(f"{name} must be a dense tensor of floating point numbers, found {shown(tensor)}")
        dims = self.space.parameters[name]
        lead = tensor.ndim - len(dims)
        if lead < 0:
            raise InvalidValueError(
                f"{name} has shape {tuple(tensor.shape)} but {self.space.describe(name)} is expected"
            )
        sizes = sizes_in(self.space, name, tuple(tensor.shape[lead:]), self.sizes)

        def move(x: Tensor) -> Tensor:
            pieces = cut(self.space, name, x, sizes)
            moved = {piece: self._moved(part, self.space.pieces[piece].places, lead) for piece, part in pieces}
            return joined(self.space, name, moved, sizes)

        return within_range(name, tensor, move)

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of the nodes that are known from the matrices or the space."""
        nesting = self.space.nesting
        fixed = {n: node.size for n, node in self.space.nodes.items() if not node.permutes and node.size is not None}
        known = {*fixed, *self.matrices}
        return fixed | {n: m.size // self._blocks(n) for n, m in self.matrices.items() if nesting.get(n, n) in known}

    def _moved(self, x: Tensor, places: Iterable[Place], leading: int) -> Tensor:
        """A tensor ``(*leading, *axes, ..)`` with the matrix of each of these places on its axis."""
        for place in places:
            if place.node not in self.matrices:
                continue
            matrix, dims = self.matrices[place.node], place.dims(leading)
            if len(dims) == 1:
                x = matrix.moved(x, dims[0], place.charge)
                continue
            # All that a neuron is nested in has moved already: its own matrix acts on all neurons together.
            front = tuple(range(leading, leading + len(dims)))
            together = x.movedim(dims, front)
            flat = matrix.moved(together.flatten(front[0], front[-1]), leading, place.charge)
            x = flat.reshape(together.shape).movedim(front, dims)
        return x

    def __repr__(self) -> str:
        return f"GroupElement({self.space}, {self.matrices})"


def random_element(space: WeightSpace, sizes: Mapping[str, int | None], **options: Any) -> GroupElement:
    """A random element, see `WeightSpace.sample`; options are those of `MonomialMatrix.random`."""
    matrices = {}
    for name, node in ((n, node) for n, node in space.nodes.items() if node.permutes):
        above = space.ancestry(name)
        for needed in above:
            if sizes[needed] is None:
                raise InvalidValueError(f"size of node {needed!r} is not known; give sizes={{{needed!r}: n}}")
        *outer, size = (sizes[needed] or 0 for needed in above)
        blocks = math.prod(outer)
        matrices[name] = MonomialMatrix.random(blocks * size, node.gauges, blocks=blocks, **options)
    return GroupElement(space, matrices)


def _rolled(permutation: Tensor, blocks: int) -> Tensor:
    """The entries of each neuron's neighbour, in each of some blocks."""
    return permutation.view(*permutation.shape[:-1], blocks, -1).roll(1, -1).flatten(-2)


def _require_member(name: str, matrix: MonomialMatrix, node: Node) -> None:
    if len(matrix.scales) != len(node.gauges):
        raise InvalidValueError(f"node {name!r} has {len(node.gauges)} gauges, its matrix {len(matrix.scales)}")
    if not concrete((*matrix.scales, matrix.permutation)):
        return
    identity = torch.equal(matrix.permutation, matrix.places) and all(bool((d == 1).all()) for d in matrix.scales)
    if not node.permutes and not identity:
        raise InvalidValueError(f"node {name!r} is FIXED: only the identity acts on it")
    for gauge, scale in zip(node.gauges, matrix.scales, strict=True):
        if not gauge.flips and not bool((scale > 0).all()):
            raise InvalidValueError(
                f"negative scale on node {name!r}, whose symmetry is {gauge}: scales must be positive"
            )
        if not gauge.scales and not bool((scale.abs() == 1).all()):
            allowed = "+1 or -1" if gauge.flips else "1"
            raise InvalidValueError(f"node {name!r} has symmetry {gauge}: scales must be {allowed}, found others")
