"""What acts: monomial matrices on one node's neurons, and group elements on a whole network (paper Secs. 3, 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from nfn_monomial.symmetry import Activation, Symmetry

from .axes import Axis, field_name
from .features import Features
from .packing import concrete, split_shape, wide
from .specification import Specification


@dataclass(frozen=True, eq=False, repr=False)
class MonomialMatrix:
    """A monomial matrix ``g = D P``: ``(g x)_j = d_j x_{pi^{-1}(j)}`` (paper Sec. 3.1), or a batch of them.

    Args:
        scale: ``d``, shape ``(n,)`` or ``(B, n)``, nonzero.
        permutation: ``pi``, integers of the same shape: neuron ``k`` moves to place ``pi(k)``.
        permutes: False promises that ``permutation`` is the identity, so that acting need not move anything.

    Raises:
        ValueError: if the shapes differ; or, where values can be looked at (not under ``torch.compile``, ``torch.func``
            transforms and on the meta device), ``scale`` has a zero or non-finite entry, or ``permutation`` is none.
    """

    scale: Tensor
    permutation: Tensor
    permutes: bool = True

    def __post_init__(self) -> None:
        if self.scale.shape != self.permutation.shape or self.scale.ndim not in (1, 2):
            raise ValueError(
                f"MonomialMatrix: scale {tuple(self.scale.shape)} and permutation {tuple(self.permutation.shape)} "
                "must have the same shape, (n,) or (B, n)"
            )
        if not concrete((self.scale, self.permutation)):
            return
        if not bool((torch.isfinite(self.scale) & (self.scale != 0)).all()):
            raise ValueError("MonomialMatrix: scale must be finite and nonzero")
        if not self.permutes:
            return
        n = self.permutation.shape[-1]
        expected = torch.arange(n, device=self.permutation.device).expand(self.permutation.shape)
        if self.permutation.dtype.is_floating_point or not torch.equal(self.permutation.sort(-1).values, expected):
            raise ValueError(f"MonomialMatrix: permutation must hold each of 0..{n - 1} once in every row")

    @classmethod
    def identity(cls, n: int, *, device: torch.device | str | None = None) -> MonomialMatrix:
        """The identity on ``n`` neurons."""
        return cls.diagonal(torch.ones(n, dtype=torch.float64, device=device))

    @classmethod
    def diagonal(cls, scale: Tensor) -> MonomialMatrix:
        """``D`` alone: scales ``(n,)`` or ``(B, n)`` and no permutation."""
        return cls(scale, torch.arange(scale.shape[-1], device=scale.device).expand_as(scale), permutes=False)

    @classmethod
    def random(
        cls,
        n: int,
        symmetry: Symmetry | Activation,
        scale_range: tuple[float, float] | None = None,
        *,
        batch: int | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> MonomialMatrix:
        """A random element of the group ``symmetry`` on ``n`` neurons.

        Permutations and signs are uniform. Scales are uniform in ``scale_range = (lo, hi)`` as in the paper
        (Sec. 6.1), or log-normal (``exp`` of a standard normal) where no range is given.

        Args:
            n: number of neurons.
            symmetry: the group.
            scale_range: bounds of the scales' size, ``0 < lo <= hi``.
            batch: if given, that many independent elements in one batched matrix.
            generator: source of randomness, on ``device``.
            dtype: of the scales; float64 keeps inverses exact to 1e-16.
            device: where to create it.

        Raises:
            ValueError: if ``scale_range`` is not ``0 < lo <= hi``: a symmetry's scales are positive, and signs
                belong to SIGN and MONOMIAL.
        """
        symmetry = Symmetry.coerce(symmetry)
        if scale_range is not None and not 0 < scale_range[0] <= scale_range[1] < float("inf"):
            raise ValueError(
                f"scale_range must be 0 < lo <= hi < inf, found {scale_range}: scales are positive; sign flips "
                "come with Symmetry.SIGN or MONOMIAL, not with a negative range"
            )
        shape = (n,) if batch is None else (batch, n)
        scale = torch.ones(shape, dtype=dtype, device=device)
        permutation = torch.arange(n, device=device).expand(shape)
        if symmetry.permutes:
            permutation = torch.rand(shape, generator=generator, device=device).argsort(-1)
        if symmetry.scales and scale_range is None:
            scale = torch.randn(shape, generator=generator, dtype=dtype, device=device).exp()
        elif symmetry.scales and scale_range is not None:
            lo, hi = scale_range
            scale = lo + (hi - lo) * torch.rand(shape, generator=generator, dtype=dtype, device=device)
        if symmetry.flips:
            scale = scale * (2 * torch.randint(2, shape, generator=generator, device=device) - 1)
        return cls(scale, permutation, symmetry.permutes)

    @property
    def size(self) -> int:
        """Number of neurons ``n``."""
        return self.scale.shape[-1]

    @property
    def batch(self) -> int | None:
        """Number of matrices, or None for a single one."""
        return self.scale.shape[0] if self.scale.ndim == 2 else None

    def dense(self) -> Tensor:
        """The matrix itself, ``(n, n)`` or ``(B, n, n)``: entry ``d_j`` at ``(j, pi^{-1}(j))``."""
        source = self.permutation.argsort(-1)
        return torch.nn.functional.one_hot(source, self.size).to(self.scale.dtype) * self.scale.unsqueeze(-1)

    def inverse(self) -> MonomialMatrix:
        """``g^{-1}``: scale ``1 / d_{pi(k)}``, permutation ``pi^{-1}``."""
        return MonomialMatrix(1 / self.scale.gather(-1, self.permutation), self.permutation.argsort(-1), self.permutes)

    def __matmul__(self, other: MonomialMatrix) -> MonomialMatrix:
        """The product (semidirect law, paper Remark 3.5): ``d_j d'_{pi^{-1}(j)}`` and ``pi o pi'``."""
        if self.size != other.size:
            raise ValueError(f"monomial matrices of {self.size} and {other.size} neurons do not compose")
        if None not in (self.batch, other.batch) and self.batch != other.batch:
            raise ValueError(f"batches of {self.batch} and {other.batch} monomial matrices do not compose")
        shape = max(self.scale.shape, other.scale.shape, key=len)
        permutation, source = self.permutation.expand(shape), self.permutation.argsort(-1).expand(shape)
        return MonomialMatrix(
            self.scale * other.scale.expand(shape).gather(-1, source),
            permutation.gather(-1, other.permutation.expand(shape)),
            self.permutes or other.permutes,
        )

    def act(self, x: Tensor, dim: int, charge: int = 1) -> Tensor:
        """Act on one axis of a tensor: ``x_j -> d_j^charge x_{pi^{-1}(j)}``.

        Args:
            x: any tensor with ``n`` entries along ``dim``; for a batch of matrices, ``B`` along dimension 0.
            dim: the axis.
            charge: exponent of the scales; 0 permutes only, -1 is the action on a weight's columns.

        Raises:
            ValueError: for a size or batch that does not fit; if a float16 entry is not representable any more.
        """
        return _within_range("the tensor", x, lambda wide: self._act(wide, dim % x.ndim, charge))

    def _act(self, x: Tensor, dim: int, charge: int) -> Tensor:
        if x.shape[dim] != self.size:
            raise ValueError(f"monomial matrix on {self.size} neurons cannot act on axis {dim} of {tuple(x.shape)}")
        if self.batch is not None and (dim == 0 or x.shape[0] != self.batch):
            raise ValueError(
                f"a batch of {self.batch} monomial matrices needs a tensor with {self.batch} networks along "
                f"dimension 0, found shape {tuple(x.shape)} with neurons along dimension {dim}"
            )
        shape = [1] * x.ndim
        shape[dim] = self.size
        if self.batch is not None:
            shape[0] = self.batch
        moved = torch.take_along_dim(x, self.permutation.argsort(-1).view(shape), dim) if self.permutes else x
        return moved if charge == 0 else moved * self.scale.pow(charge).to(x.dtype).view(shape)

    def __repr__(self) -> str:
        batch = "" if self.batch is None else f", batch={self.batch}"
        return f"MonomialMatrix(n={self.size}{batch})"


class GroupElement:
    """One element of a weight space's group, or a batch of them: a monomial matrix for every node.

    Composes (``g @ h``), inverts and acts on networks and on features; ``(g @ h).act(x) == g.act(h.act(x))``.

    Args:
        space: the weight space whose group it belongs to.
        matrices: node name -> matrix. Nodes left out get the identity.

    Raises:
        ValueError: if a matrix is not in the group of its node (a negative scale for SCALE, any scale for
            PERMUTATION, anything but the identity for FIXED), or a node is unknown.
    """

    def __init__(self, space: Specification, matrices: Mapping[str, MonomialMatrix]) -> None:
        for name, matrix in matrices.items():
            if name not in space.nodes:
                raise ValueError(f"no node {name!r} in {space}; nodes: {', '.join(space.nodes)}")
            _require_member(name, matrix, space.nodes[name].symmetry)
        self.space = space
        self.matrices = dict(matrices)

    def __matmul__(self, other: GroupElement) -> GroupElement:
        if self.space.nodes != other.space.nodes:
            raise ValueError(f"group elements of different spaces do not compose: {self.space} and {other.space}")
        product = dict(self.matrices)
        for name, matrix in other.matrices.items():
            product[name] = product[name] @ matrix if name in product else matrix
        return GroupElement(self.space, product)

    def inverse(self) -> GroupElement:
        """The inverse element."""
        return GroupElement(self.space, {name: m.inverse() for name, m in self.matrices.items()})

    def proper(self) -> GroupElement:
        """The element with every matrix moved off the identity: it permutes (n > 1) and has both signs (n > 1)."""
        symmetries = {name: self.space.nodes[name].symmetry for name in self.matrices}
        return GroupElement(self.space, {name: _proper(m, symmetries[name]) for name, m in self.matrices.items()})

    @overload
    def act(self, tensors: Features) -> Features: ...
    @overload
    def act(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def act(self, tensors: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """The action of paper Def. 4.2, on every axis with that axis' charge.

        Args:
            tensors: parameter name -> tensor ``(..., *shape)`` with any leading dimensions (a state dict, or a
                batch ``(B, C, *shape)``), or `Features`. For a batch of elements, dimension 0 is the batch.
                Names that are no parameters of the space are passed through.

        Returns:
            The same kind of thing; the input is not written to.

        Raises:
            ValueError: for sizes that do not fit, naming the tensor; for float16 tensors, where an entry would be
                larger than float16 holds and values can be looked at.
        """
        if isinstance(tensors, Features):
            fields = tensors.fields.items()
            moved = (self._moved(f"[{field_name(field)}]", x, x.shape, field, 1) for field, x in fields)
            return Features(tensors.layout, tuple(moved))
        out = {}
        for name, tensor in tensors.items():
            out[name] = self._act_parameter(name, tensor) if name in self.space.parameters else tensor
        return out

    def _act_parameter(self, name: str, tensor: Tensor) -> Tensor:
        dims = self.space.parameters[name]
        lead = tensor.ndim - len(dims)
        if lead < 0:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)} but {self.space.describe(name)} is expected")
        sizes = {node: matrix.size for node, matrix in self.matrices.items()}
        extents = split_shape(self.space, name, tuple(tensor.shape[lead:]), sizes)
        return self._moved(name, tensor, (*tensor.shape[:lead], *extents), self.space.axes[name], lead)

    def _moved(self, name: str, tensor: Tensor, shape: Sequence[int], axes: Sequence[Axis | int], first: int) -> Tensor:
        """``tensor``, seen in ``shape``, whose dimensions from the ``first`` on are ``axes``."""

        def move(x: Tensor) -> Tensor:
            x = x.reshape(shape)
            for dim, axis in enumerate(axes, start=first):
                if not isinstance(axis, int) and axis.node in self.matrices:
                    x = self.matrices[axis.node].act(x, dim, axis.charge)
            return x.reshape(tensor.shape)

        return _within_range(name, tensor, move)

    def __repr__(self) -> str:
        return f"GroupElement({self.space}, {self.matrices})"


def _proper(matrix: MonomialMatrix, symmetry: Symmetry) -> MonomialMatrix:
    scale, permutation = matrix.scale.clone(), matrix.permutation.clone()
    trivial = (permutation == torch.arange(matrix.size, device=scale.device)).all(-1, keepdim=True)
    if symmetry.permutes:
        permutation = torch.where(trivial, permutation.roll(1, -1), permutation)
    if symmetry.flips:
        one_sign = (scale > 0).all(-1) if matrix.size == 1 else (scale > 0).all(-1) | (scale < 0).all(-1)
        scale[..., 0] = torch.where(one_sign, -scale[..., 0], scale[..., 0])
    return MonomialMatrix(scale, permutation)


def _within_range(name: str, x: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
    """``move(x)``. Of float16, which ends at 65504, in float32, so that only the result need be representable."""
    if x.dtype != torch.float16:
        return move(x)
    moved = move(wide(x)).to(x.dtype)
    if concrete((moved,)) and bool(x.isfinite().all()) and not bool(moved.isfinite().all()):
        raise ValueError(
            f"{name} has entries of up to {float(x.abs().max()):.1e}, which these scales make larger than "
            f"{torch.finfo(x.dtype).max:.0f}, the largest float16: convert the networks with .float() first"
        )
    return moved


def _require_member(node: str, matrix: MonomialMatrix, symmetry: Symmetry) -> None:
    scale = matrix.scale
    if not concrete((scale, matrix.permutation)):
        return
    if not symmetry.permutes:
        identity = torch.arange(matrix.size, device=scale.device).expand_as(matrix.permutation)
        if not torch.equal(matrix.permutation, identity) or not bool((scale == 1).all()):
            raise ValueError(f"node {node!r} is FIXED: only the identity acts on it")
    if not symmetry.flips and not bool((scale > 0).all()):
        raise ValueError(f"negative scale on node {node!r}, whose symmetry is {symmetry}: scales must be positive")
    if not symmetry.scales and not bool((scale.abs() == 1).all()):
        allowed = "+1 or -1" if symmetry.flips else "1"
        raise ValueError(f"node {node!r} has symmetry {symmetry}: scales must be {allowed}, found others")
