"""Monomial matrices: the group elements that act on the neurons of one node (paper Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nfn_monomial.checks import FLOATING, WHOLE, Device, Floating, Size, checked, shown
from nfn_monomial.errors import InvalidIndexError, InvalidTypeError, InvalidValueError
from nfn_monomial.symmetry import Activation, Symmetry

from .axes import Charge, powers
from .packing import concrete, wide


class MonomialMatrix:
    """A monomial matrix ``g = D P``: ``(g x)_j = d_j x_{pi^{-1}(j)}`` (paper Sec. 3.1), or a batch of them.

    On a node of several gauges there are as many diagonals ``d``, each with a charge of its own.

    Args:
        scale: ``d``, shape ``(n,)`` or ``(B, n)``, nonzero; or a sequence of them, one for each gauge.
        permutation: ``pi``, integers of the same shape: neuron ``k`` moves to place ``pi(k)``.
        permutes: False promises that ``permutation`` is the identity, so that acting need not move anything.

    Attributes:
        scales: one diagonal for each gauge.
        permutation: the argument.
        permutes: the argument.

    Raises:
        ValueError: if the shapes differ; or, where values can be looked at (not under ``torch.compile``, ``torch.func``
            transforms and on the meta device), ``scale`` has a zero or non-finite entry, or ``permutation`` is none.
    """

    __array_ufunc__: None = None  # or numpy would take a product with an array apart
    __slots__ = ("permutation", "permutes", "scales")

    @checked
    def __init__(self, scale: Sequence[Tensor] | Tensor, permutation: Tensor, permutes: bool = True) -> None:
        self.scales = (scale,) if isinstance(scale, Tensor) else tuple(scale)
        self.permutation, self.permutes = permutation, permutes
        if not self.scales:
            raise InvalidValueError("MonomialMatrix: one scale for each gauge is needed, found none")
        for scale in self.scales:
            if scale.shape != self.permutation.shape or scale.ndim not in (1, 2) or not scale.shape[-1]:
                raise InvalidValueError(
                    f"MonomialMatrix: scale {tuple(scale.shape)} and permutation {tuple(self.permutation.shape)} "
                    "must have the same shape, (n,) or (B, n)"
                )
            if scale.dtype not in (*FLOATING, *WHOLE):
                raise InvalidTypeError(f"MonomialMatrix: scale must be real numbers, found {shown(scale)}")
            if scale.device != permutation.device:
                raise InvalidValueError(f"MonomialMatrix: scale on {scale.device}, permutation on {permutation.device}")
        if permutation.dtype not in WHOLE:
            raise InvalidTypeError(f"MonomialMatrix: permutation must be whole numbers, found {shown(permutation)}")
        if not concrete((*self.scales, self.permutation)):
            return
        if not all(bool((torch.isfinite(scale) & (scale != 0)).all()) for scale in self.scales):
            raise InvalidValueError("MonomialMatrix: scale must be finite and nonzero")
        if not self.permutes:
            return
        if not torch.equal(self.permutation.sort(-1).values.long(), self.places):
            raise InvalidValueError(
                f"MonomialMatrix: permutation must hold each of 0..{self.size - 1} once in every row"
            )

    @property
    def places(self) -> Tensor:
        """The numbers of the neurons, of the permutation's shape: where it is the identity, it is these."""
        return torch.arange(self.size, device=self.permutation.device).expand_as(self.permutation)

    @property
    def scale(self) -> Tensor:
        """The diagonal ``d`` of the one gauge.

        Raises:
            ValueError: on a node of several, whose diagonals are ``scales``.
        """
        if len(self.scales) > 1:
            raise InvalidValueError(f"a node of {len(self.scales)} gauges has one scale for each: .scales")
        return self.scales[0]

    @classmethod
    @checked
    def identity(cls, n: Size, *, device: Device | None = None) -> MonomialMatrix:
        """The identity on ``n`` neurons."""
        return cls.diagonal(torch.ones(n, dtype=torch.float64, device=device))

    @classmethod
    @checked
    def diagonal(cls, scale: Tensor | Sequence[Tensor]) -> MonomialMatrix:
        """``D`` alone: scales ``(n,)`` or ``(B, n)``, one or one for each gauge, and no permutation."""
        first = next(iter([scale] if isinstance(scale, Tensor) else scale), torch.ones(1))
        permutation = torch.arange(first.shape[-1] if first.ndim else 0, device=first.device)
        return cls(scale, permutation.expand_as(first) if first.ndim else permutation, permutes=False)

    @classmethod
    @checked
    def random(
        cls,
        n: Size,
        symmetry: Symmetry | Activation | Sequence[Symmetry],
        scale_range: tuple[float, float] | None = None,
        *,
        blocks: Size = 1,
        batch: Size | None = None,
        generator: torch.Generator | None = None,
        dtype: Floating = torch.float64,
        device: Device | None = None,
    ) -> MonomialMatrix:
        """A random element of the group ``symmetry`` on ``n`` neurons.

        Permutations and signs are uniform. Scales are uniform in ``scale_range = (lo, hi)`` as in the paper
        (Sec. 6.1), or log-normal (``exp`` of a standard normal) without a range.

        Args:
            n: number of neurons.
            symmetry: the group; or those of several gauges, over one permutation.
            scale_range: bounds of the scales' size, ``0 < lo <= hi``.
            blocks: how many parts of equal size the neurons lie in, in order; they are permuted inside of these.
            batch: number of independent elements in one batched matrix; None for a single one.
            generator: source of randomness, on ``device``.
            dtype: of the scales; float64 keeps inverses exact to 1e-16.
            device: where to create it.

        Raises:
            ValueError: if ``scale_range`` is not ``0 < lo <= hi``: a symmetry's scales are positive, and signs
                belong to SIGN and MONOMIAL.
        """
        if n % blocks:
            raise InvalidValueError(f"MonomialMatrix.random: {n} neurons do not lie evenly in {blocks} blocks")
        gauges = symmetry if isinstance(symmetry, Sequence) and not isinstance(symmetry, str) else (symmetry,)
        require_range(scale_range)
        shape = (n,) if batch is None else (batch, n)
        permutation = torch.arange(n, device=device).expand(shape)
        groups = [Symmetry.coerce(gauge) for gauge in gauges]
        if not groups:
            raise InvalidValueError("MonomialMatrix.random: a symmetry for each gauge is needed, found none")
        if permutes := groups[0].permutes:
            parts = (*shape[:-1], blocks, n // blocks)
            inside = torch.rand(parts, generator=generator, device=device).argsort(-1)
            permutation = (inside + permutation.view(parts)[..., :1]).view(shape)
        scales = []
        for group in groups:
            scale = torch.ones(shape, dtype=dtype, device=device)
            if group.scales and scale_range is None:
                scale = torch.randn(shape, generator=generator, dtype=dtype, device=device).exp()
            elif group.scales and scale_range is not None:
                lo, hi = scale_range
                scale = lo + (hi - lo) * torch.rand(shape, generator=generator, dtype=dtype, device=device)
            if group.flips:
                scale = scale * (2 * torch.randint(2, shape, generator=generator, device=device) - 1)
            scales.append(scale)
        return cls(scales, permutation, permutes)

    @property
    def motion(self) -> MonomialMatrix:
        """The permutation alone."""
        return MonomialMatrix(torch.ones_like(self.scales[0]), self.permutation, self.permutes)

    def lifted(self, size: int) -> MonomialMatrix:
        """The motion of neurons nested in these, ``size`` in each: they move along as blocks, without a scale."""
        inside = torch.arange(size, device=self.permutation.device)
        permutation = (self.permutation.unsqueeze(-1) * size + inside).flatten(-2)
        return MonomialMatrix(torch.ones_like(permutation, dtype=self.scales[0].dtype), permutation, self.permutes)

    @property
    def size(self) -> int:
        """Number of neurons ``n``."""
        return self.permutation.shape[-1]

    @property
    def batch(self) -> int | None:
        """Number of matrices, or None for a single one."""
        return self.permutation.shape[0] if self.permutation.ndim == 2 else None

    def dense(self) -> Tensor:
        """The matrix itself, ``(n, n)`` or ``(B, n, n)``: entry ``d_j`` at ``(j, pi^{-1}(j))``."""
        source = self.permutation.argsort(-1)
        return torch.nn.functional.one_hot(source, self.size).to(self.scale.dtype) * self.scale.unsqueeze(-1)

    def inverse(self) -> MonomialMatrix:
        """``g^{-1}``: scale ``1 / d_{pi(k)}``, permutation ``pi^{-1}``."""
        scales = [1 / scale.gather(-1, self.permutation) for scale in self.scales]
        return MonomialMatrix(scales, self.permutation.argsort(-1), self.permutes)

    def __matmul__(self, other: MonomialMatrix) -> MonomialMatrix:
        """The product (semidirect law, paper Remark 3.5): ``d_j d'_{pi^{-1}(j)}`` and ``pi o pi'``."""
        if not isinstance(other, MonomialMatrix):
            return NotImplemented
        if self.size != other.size:
            raise InvalidValueError(f"monomial matrices of {self.size} and {other.size} neurons do not compose")
        if None not in (self.batch, other.batch) and self.batch != other.batch:
            raise InvalidValueError(f"batches of {self.batch} and {other.batch} monomial matrices do not compose")
        if len(self.scales) != len(other.scales):
            raise InvalidValueError(f"matrices of {len(self.scales)} and {len(other.scales)} gauges do not compose")
        shape = max(self.permutation.shape, other.permutation.shape, key=len)
        permutation, source = self.permutation.expand(shape), self.permutation.argsort(-1).expand(shape)
        return MonomialMatrix(
            [d * e.expand(shape).gather(-1, source) for d, e in zip(self.scales, other.scales, strict=True)],
            permutation.gather(-1, other.permutation.expand(shape)),
            self.permutes or other.permutes,
        )

    def moved_by(self, outer: MonomialMatrix) -> MonomialMatrix:
        """``outer self outer^{-1}`` for an outer one that only permutes: the same on neurons that have moved."""
        source = outer.permutation.argsort(-1)
        shape = max(self.permutation.shape, source.shape, key=len)
        source, target = source.expand(shape), outer.permutation.expand(shape)
        permutation = target.gather(-1, self.permutation.expand(shape).gather(-1, source))
        return MonomialMatrix([d.expand(shape).gather(-1, source) for d in self.scales], permutation, self.permutes)

    def factor(self, charge: Charge) -> Tensor | None:
        """The factor of an axis of this charge, the product of the gauges' powers; None where it is 1."""
        product: Tensor | None = None
        for scale, q in zip(self.scales, (*powers(charge), *[0] * len(self.scales)), strict=False):
            if q:
                product = scale.pow(q) if product is None else product * scale.pow(q)
        return product

    @checked
    def act(self, x: Tensor, dim: int, charge: Charge = 1) -> Tensor:
        """Act on one axis of a tensor: ``x_j -> d_j^charge x_{pi^{-1}(j)}``.

        Args:
            x: any tensor with ``n`` entries along ``dim``; for a batch of matrices, ``B`` along dimension 0.
            dim: the axis.
            charge: exponent of the scales; 0 permutes only, -1 is the action on a weight's columns. Of several
                gauges one exponent each.

        Raises:
            IndexError: if the tensor has no such axis.
            TypeError: for anything but a dense tensor of real or complex numbers; whole numbers cannot be scaled.
            ValueError: for a size or batch that does not fit; if a float16 entry is not representable any more.
        """
        if not -x.ndim <= dim < x.ndim:
            raise InvalidIndexError(f"MonomialMatrix.act: dim {dim} of a tensor of shape {tuple(x.shape)}")
        if len(powers(charge)) > len(self.scales):
            raise InvalidValueError(f"charge {charge} has {len(powers(charge))} entries for {len(self.scales)} gauges")
        return within_range("the tensor", x, lambda wide: self.moved(wide, dim % x.ndim, charge))

    def moved(self, x: Tensor, dim: int, charge: Charge) -> Tensor:
        """`act` on a dense tensor, whose dimension and charge are known to fit, without the check of float16."""
        if x.device != self.permutation.device or (x.dtype not in FLOATING and x.is_floating_point()):
            raise InvalidTypeError(
                f"MonomialMatrix.act: a matrix on {self.permutation.device} cannot act on {shown(x)}; convert it"
            )
        if x.shape[dim] != self.size:
            raise InvalidValueError(
                f"monomial matrix on {self.size} neurons cannot act on axis {dim} of {tuple(x.shape)}"
            )
        if self.batch is not None and (dim == 0 or x.shape[0] != self.batch):
            raise InvalidValueError(
                f"a batch of {self.batch} monomial matrices needs a tensor with {self.batch} networks along "
                f"dimension 0, found shape {tuple(x.shape)} with neurons along dimension {dim}"
            )
        shape = [1] * x.ndim
        shape[dim] = self.size
        if self.batch is not None:
            shape[0] = self.batch
        factor = self.factor(charge)
        if factor is not None and not (x.is_floating_point() or x.is_complex()):
            raise InvalidTypeError(
                f"monomial matrix: scaled {x.dtype} would be rounded; convert the tensor with .double(), or move it "
                "with charge=0"
            )
        moved = x
        if self.permutes:
            source = self.permutation.argsort(-1)
            one = self.batch is None  # which needs no index for every entry
            moved = x.index_select(dim, source) if one else torch.take_along_dim(x, source.view(shape), dim)
        return moved if factor is None else moved * factor.to(x.dtype).view(shape)

    def __repr__(self) -> str:
        batch = "" if self.batch is None else f", batch={self.batch}"
        return f"MonomialMatrix(n={self.size}{batch})"


def require_range(scale_range: tuple[float, float] | None) -> None:
    """Raises unless scales may be drawn from this range."""
    if scale_range is not None and not 0 < scale_range[0] <= scale_range[1] < float("inf"):
        raise InvalidValueError(
            f"scale_range must be 0 < lo <= hi < inf, found {scale_range}: scales are positive; sign flips "
            "come with Symmetry.SIGN or MONOMIAL, not with a negative range"
        )


def within_range(name: str, x: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
    """``move(x)``; float16, which ends at 65504, is moved in float32, so that only the result need be representable."""
    if x.dtype != torch.float16:
        return move(x)
    moved = move(wide(x)).to(x.dtype)
    if concrete((moved,)) and bool(x.isfinite().all()) and not bool(moved.isfinite().all()):
        raise InvalidValueError(
            f"{name} has entries of up to {float(x.abs().max()):.1e}, which these scales make larger than "
            f"{torch.finfo(x.dtype).max:.0f}, the largest float16: convert the networks with .float() first"
        )
    return moved
