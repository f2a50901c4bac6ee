"""Every rule on a tiny network of its own: how many scalings and flips it leaves, and that these keep the function."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Element, permutations, scalings, signs
from deriving import derive
from networks.oracle import Function
from networks.oracle import scalings as counted
from torch import Tensor, nn

from nfn_monomial.space.axes import Axis, segments_of
from nfn_monomial.trace import Derivation
from nfn_monomial.trace.operators import ruled

aten = torch.ops.aten
VECTOR = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROWS, MASK = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([True, False, True, True, False])
GRID = torch.rand(5, 2, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
GRID3 = torch.rand(5, 2, 3, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
COUNTS = torch.tensor([1, 0, 2, 1, 1])
PAIRS = torch.tensor([[3, 1], [0, 2], [4, 1]])
COLUMNS = torch.tensor([[3, 1], [0, 2], [4, 1], [5, 0], [2, 3]])


class Case(NamedTuple):
    """An operator between linear maps.

    Attributes:
        function: of what it names: ``h`` and ``g``, values of 5 rows and 6 neurons, and tensors of `Between`.
        scales, flips: independent scalings, and flips of neurons, that there are.
        permuted: nodes that are permuted, where that is looked at.
    """

    function: Callable[..., Tensor]
    scales: int
    flips: int
    permuted: str | None = None


class Between(nn.Module):
    """``b(function(a(x), c(x), ...))``."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.names = function, tuple(inspect.signature(function).parameters)
        for name, layer in (("h", "a"), ("g", "c")):
            if name in self.names:
                self.add_module(layer, nn.Linear(4, 6))
        for name, shape in (("weight", (6, 6)), ("third", (2, 6, 6)), ("vector", (6,))):
            if name in self.names:
                self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        if "variance" in self.names:
            self.register_buffer("mean", torch.randn(6))
            self.register_buffer("variance", torch.rand(6) + 0.5)
        self.double()
        self.b = nn.Linear(self.inside(VECTOR).shape[1], 3).double()

    def inside(self, x: Tensor) -> Tensor:
        layers = {"h": "a", "g": "c"}
        given = {n: getattr(self, layers[n])(x) if n in layers else getattr(self, n) for n in self.names}
        return self.function(**given).double().flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.inside(x))


class Beside(nn.Module):
    """Networks beside one another: one export for all of them."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(Between(case.function) for case in cases.values())

    def forward(self, x: Tensor) -> list[Tensor]:
        return [network(x) for network in self.networks]

    def weights(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Other weights, variances positive."""
        state = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        noise = {name: torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in state.items()}
        return {n: t.exp() if n.endswith("variance") else state[n].detach() + t / 2 for n, t in noise.items()}


def on(h: Tensor, places: int) -> Tensor:
    """Neurons as channels over 4 places in each of some directions, which they fill unevenly."""
    grid = torch.linspace(-1, 2, 4**places, dtype=h.dtype).cos()
    return h.view(*h.shape, *[1] * places) * grid.view([4] * places)


def spread(y: Tensor) -> Tensor:
    """The sum over places of channels, weighed unevenly."""
    return y.flatten(2) @ torch.linspace(1, 2, math.prod(y.shape[2:]), dtype=torch.float64)


def kernel(weight: Tensor, places: int) -> Tensor:
    """A matrix as a kernel of 2 places in each of some directions."""
    return weight.view(6, 6, *[1] * places).expand(6, 6, *[2] * places)


def unpooled(x: Tensor, places: int) -> Tensor:
    """A max-pool and back."""
    pool, back = getattr(F, f"max_pool{places}d"), getattr(F, f"max_unpool{places}d")
    return back(*pool(x, 2, return_indices=True), 2)


def standard(weight: Tensor) -> Tensor:
    """Weight standardisation: rows of mean 0 and variance 1."""
    variance, mean = torch.var_mean(weight, 1, keepdim=True)
    return (weight - mean) * torch.rsqrt(variance + 1e-3)


def gathered(h: Tensor, weight: Tensor) -> Tensor:
    """Rows of a matrix for the two largest of a softmax."""
    chances, chosen = h.softmax(1).topk(2, 1)
    rows = weight[chosen.reshape(-1)].view(5, 2, 6)
    return (chances[..., None] * rows.tanh()).sum(1)


def filtered(h: Tensor, third: Tensor) -> Tensor:
    """A convolution over places as a product of frequencies (Fourier neural operators)."""
    mixing = torch.view_as_complex(third.permute(1, 2, 0).contiguous())
    return spread(torch.fft.irfft(torch.einsum("bix,oi->box", torch.fft.rfft(on(h, 1)), mixing)))


def each(names: str, scales: int, flips: int, before: Callable[[Tensor], Tensor] = lambda h: h) -> dict[str, Case]:
    """Functions of one value."""

    def case(operator: Any) -> Case:
        return Case(lambda h: operator(before(h)), scales, flips)

    return {name: case(getattr(aten, name)) for name in names.split()}


def both(names: str, scales: int, flips: int, *, masks: bool = False, truths: bool = False) -> dict[str, Case]:
    """Functions of two values, of their signs, or, multiplied with the first one, that give truth values."""

    def case(operator: Any) -> Case:
        def function(h: Tensor, g: Tensor) -> Tensor:
            found = operator(h > 0, g > 0) if masks else operator(h, g)
            return h * found if truths else found

        return Case(function, scales, flips)

    return {name: case(getattr(aten, name)) for name in names.split()}


def applied(
    names: str, scales: int, flips: int, *given: Any, output: int | None = None, what: str = ""
) -> dict[str, Case]:
    """Operators of one value and other arguments; of their positions, which are an ``output``, the value times them."""

    def case(operator: Any) -> Case:
        def function(h: Tensor) -> Tensor:
            found = operator(h, *given)
            found = found if output is None else found[output]
            return h * found if what == "its position" else found

        return Case(function, scales, flips)

    return {f"{name}: {what}" if what else name: case(getattr(aten, name)) for name in names.split()}


POINTWISE: dict[str, Case] = {
    **each(
        "neg negative contiguous clone detach alias lift_fresh lift_fresh_copy positive real conj resolve_conj "
        "resolve_neg deg2rad rad2deg _to_copy",
        6, 6,
    ),
    **each("relu rrelu leaky_relu", 6, 0),
    **each("tanh sin erf atan arctan asinh arcsinh sinh tan softshrink hardshrink round trunc fix frac", 0, 6),
    **each("erfinv asin arcsin atanh arctanh", 0, 6, torch.sin),
    **each("cos cosh sinc i0 special_i0", 0, 6),
    **each(
        "gelu silu mish elu selu celu hardswish relu6 expm1 floor ceil sigmoid special_expit softplus log_sigmoid "
        "exp exp2 erfc special_erfcx hardsigmoid nan_to_num",
        0, 0,
    ),
    **each("log log2 log10 log1p logit acos arccos lgamma digamma", 0, 0, torch.sigmoid),
    **each("acosh arccosh", 0, 0, lambda h: 1 + h.exp()),
    **each("abs absolute square reciprocal sgn sign", 6, 6),
    **each("sqrt rsqrt", 6, 6, torch.abs),
    **both("add sub subtract rsub", 6, 6),
    **both("mul multiply div divide true_divide", 12, 12),
    **both("maximum minimum fmax fmin", 6, 0),
    **both("fmod remainder", 6, 6),
    "floor_divide": Case(lambda h, g: aten.floor_divide(h, g), 6, 6),
    "logaddexp": Case(lambda h, g: aten.logaddexp(h, g), 0, 0),
    **both(
        "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ __or__",
        12, 0, masks=True, truths=True,
    ),
    **both("gt ge lt le greater greater_equal less less_equal", 6, 0, truths=True),
    "isnan": Case(lambda h: h * aten.isnan(h), 0, 0),
    "isinf": Case(lambda h: h * aten.isinf(h), 0, 0),
    "isfinite": Case(lambda h: h * aten.isfinite(h), 0, 6),
    "atan2": Case(lambda h, g: aten.atan2(h, g), 6, 0),
    "hypot": Case(lambda h, g: aten.hypot(h, g), 6, 6),
    "xlogy": Case(lambda h, g: aten.xlogy(h, g.exp()), 0, 0),
    "logical_not": Case(lambda h: h * aten.logical_not(h > 0), 6, 0),
    "bitwise_not": Case(lambda h: h * aten.bitwise_not(h > 0), 6, 0),
    "eq": Case(lambda h, g: h * aten.eq(h.sgn(), g.sgn()), 12, 6),
    "ne": Case(lambda h, g: h * aten.ne(h.sgn(), g.sgn()), 12, 6),
    "not_equal": Case(lambda h, g: h * aten.not_equal(h.sgn(), g.sgn()), 12, 6),
    "isclose": Case(lambda h, g: h * aten.isclose(h, g, 1.0, 1.0), 0, 6),
    **applied("dropout alpha_dropout feature_dropout feature_alpha_dropout", 6, 6, 0.5, False),
    **applied("native_dropout", 6, 6, 0.5, False, output=0),
    "to": Case(lambda h: h.to(torch.float64), 6, 6),
    "to: whole numbers": Case(lambda h: h.to(torch.int64), 0, 0),
    "type_as": Case(lambda h, g: h.type_as(g), 12, 12),
    "type_as: whole numbers": Case(lambda h: h.type_as(torch.ones(1, dtype=torch.int64)), 0, 0),
    "threshold: a rectifier": Case(lambda h: aten.threshold(h, 0, 0), 6, 0),
    "threshold": Case(lambda h: aten.threshold(h, 0.5, 0), 0, 0),
    "add: a number": Case(lambda h: h + 1, 0, 0),
    "add: zero": Case(lambda h: h + 0, 6, 6),
    "mul: a number": Case(lambda h: h * -2, 6, 6),
    "div: a number": Case(lambda h: h / -2, 6, 6),
    "div: of a number": Case(lambda h: 2 / h, 6, 6),
    "div: rounded": Case(lambda h, g: aten.div(h, g, rounding_mode="floor"), 6, 6),
    "sub: alpha": Case(lambda h, g: aten.sub(h, g, alpha=-3), 6, 6),
    "addcmul": Case(lambda h, g: aten.addcmul(h, g, g), 6, 6),
    "addcdiv": Case(lambda h, g: aten.addcdiv(h, g, h.exp()), 0, 0),
    "addcdiv: both": Case(lambda h, g: aten.addcdiv(h, h, g), 6, 6),
    "lerp": Case(lambda h, g: aten.lerp(h, g, 0.3), 6, 6),
    "lerp: by a tensor": Case(lambda h, g: aten.lerp(h, g, h.sigmoid()), 0, 0),
    "pow": Case(lambda h: h**3, 6, 6),
    "pow: even": Case(lambda h: h**2, 6, 6),
    "pow: a root": Case(lambda h: h.abs() ** 0.5, 6, 6),
    "pow: inverse": Case(lambda h: h**-2, 6, 6),
    "pow: of a number": Case(lambda h: 2**h, 0, 0),
    "pow: tensors": Case(lambda h, g: h.exp() ** g, 0, 0),
    "hardtanh": Case(lambda h: aten.hardtanh(h), 0, 6),
    "hardtanh: uneven": Case(lambda h: aten.hardtanh(h, -1, 2), 0, 0),
    "clamp": Case(lambda h: aten.clamp(h, -2, 2), 0, 6),
    "clamp: of one side": Case(lambda h: aten.clamp(h, min=0), 6, 0),
    "clamp: uneven": Case(lambda h: aten.clamp(h, 0, 6), 0, 0),
    "clamp: tensors": Case(lambda h, g: aten.clamp(h, -g.abs(), g.abs()), 6, 6),
    "clip": Case(lambda h: aten.clip(h, -1, 1), 0, 6),
    "clamp_min": Case(lambda h: aten.clamp_min(h, 0), 6, 0),
    "clamp_max": Case(lambda h: aten.clamp_max(h, 1), 0, 0),
    "gt: a number": Case(lambda h: h * (h > 1), 0, 0),
    "gt: zero": Case(lambda h: h * (h > 0), 6, 0),
    "eq: zero": Case(lambda h: h + (h.relu() == 0), 0, 0),
    "ne: a number": Case(lambda h: h * (h.round() != 1), 0, 0),
    "where": Case(lambda h, g: torch.where(h > 0, h, g), 6, 0),
    "where: never": Case(lambda h: torch.where(torch.zeros(6, dtype=torch.bool), h.relu(), h.tanh()), 0, 0),
    "where: a number": Case(lambda h: torch.where(h > 0, 0.5, h), 0, 0),
    "masked_fill": Case(lambda h, g: h.masked_fill(g > 0, 0.0), 12, 6),
    "masked_fill: a number": Case(lambda h: h.masked_fill(h > 0, 2.0), 0, 0),
    "masked_fill: infinity": Case(lambda h, g: h.masked_fill(g > 1, -math.inf).amax(0, True), 6, 0),
    "prelu": Case(lambda h, vector: aten.prelu(h, vector), 6, 0),
    "_prelu_kernel": Case(lambda h, weight: aten._prelu_kernel(h, weight[:1]), 6, 0),
    "prelu: zeros": Case(lambda h: aten.prelu(h, torch.zeros(6, dtype=h.dtype)).tanh(), 0, 0),
    "glu": Case(lambda h: aten.glu(h), 3, 3),
}  # fmt: skip

PRODUCTS: dict[str, Case] = {
    "linear": Case(lambda h, weight, vector: aten.linear(h, weight, vector), 12, 12),
    "matmul": Case(lambda h, weight: aten.matmul(h, weight.mT), 12, 12),
    "mm": Case(lambda h, weight: aten.mm(h, weight), 12, 12),
    "bmm": Case(lambda h, g: aten.bmm(h.view(5, 2, 3), g.view(5, 3, 2)).flatten(1), 7, 7),
    "mv": Case(lambda h, vector: aten.mv(h, vector)[:, None], 7, 6),
    "dot": Case(lambda h, g: aten.dot(h[0], g[0]).view(1, 1), 7, 6),
    "vdot": Case(lambda h, g: aten.vdot(h[0], g[1]).view(1, 1), 7, 6),
    "addmm": Case(lambda h, weight, vector: aten.addmm(vector, h, weight, alpha=2), 12, 12),
    "addmv": Case(lambda h, g, vector: aten.addmv(g.sum(1), h, vector)[:, None], 7, 6),
    "baddbmm": Case(
        lambda h, weight: aten.baddbmm(h.view(5, 2, 3), h.view(5, 2, 3), weight[:3, :3].expand(5, 3, 3)).flatten(1),
        2, 2,
    ),
    "addbmm": Case(
        lambda h, weight: aten.addbmm(weight[:2], h.view(5, 2, 3), weight[:3].expand(5, 3, 6)).view(1, 12),
        6, 6,
    ),
    "outer": Case(lambda h, g: aten.outer(h[0], g[0]), 7, 6),
    "ger": Case(lambda h, g: aten.ger(h[0], g[0]), 7, 6),
    "inner": Case(lambda h, weight: aten.inner(h, weight), 12, 12),
    "bilinear": Case(lambda h, g, third: aten.bilinear(h, g, third, None), 14, 14),
    "einsum": Case(lambda h, g, weight: torch.einsum("bi,oi,bi->bo", h, weight, g), 18, 18),
    "einsum: sums": Case(lambda h: torch.einsum("bi->b", h)[:, None], 1, 0),
    "embedding": Case(lambda weight: aten.embedding(weight, ROWS), 6, 6),
    "embedding_bag": Case(lambda weight: F.embedding_bag(PAIRS, weight), 6, 6),
    "embedding_bag: sum": Case(
        lambda h, weight: F.embedding_bag(COLUMNS, weight, mode="sum", per_sample_weights=h[:, :2]),
        11, 10,
    ),
    "embedding_bag: max": Case(lambda weight: F.embedding_bag(PAIRS, weight, mode="max"), 6, 0),
}  # fmt: skip

STATISTICS: dict[str, Case] = {
    "layer_norm": Case(lambda h: F.layer_norm(h, (6,)), 0, 0),
    "layer_norm: over heads": Case(lambda h: F.layer_norm(h.view(5, 2, 3).mT, (2,)).flatten(1), 0, 3),
    "rms_norm": Case(lambda h, vector: F.rms_norm(h, (6,), vector), 6, 12),
    "_fused_rms_norm": Case(lambda h, vector: aten._fused_rms_norm(h, [6], vector, 1e-3)[0], 6, 12),
    "native_layer_norm": Case(lambda h, vector: aten.native_layer_norm(h, [6], vector, None, 1e-3)[0], 6, 6),
    "group_norm": Case(lambda h: F.group_norm(h, 2), 0, 2),
    "native_group_norm": Case(lambda h, vector: aten.native_group_norm(h, vector, None, 5, 6, 1, 2, 1e-3)[0], 6, 8),
    "batch_norm": Case(lambda h, vector, mean, variance: F.batch_norm(h, mean, variance, vector), 12, 12),
    "batch_norm: of the batch": Case(lambda h: F.batch_norm(h, None, None, training=True), 0, 6),
    "_native_batch_norm_legit_no_training": Case(
        lambda h, vector, mean, variance: (
            aten._native_batch_norm_legit_no_training(h, vector, None, mean, variance, 0.1, 1e-3)[0]
        ),
        12, 12,
    ),
    "batch_norm: of a weight": Case(
        lambda h, weight: h @ F.batch_norm(weight.view(1, 6, 6), None, None, training=True).view(6, 6).mT, 1, 6, "6 6"
    ),
    "var_mean: of a weight": Case(lambda h, weight: h @ standard(weight).mT, 1, 6, "6 6"),
    "instance_norm": Case(lambda h: F.instance_norm(h.view(5, 2, 3)).flatten(1), 0, 2),
    **applied("sum mean nansum nanmean", 6, 6, [0], True),
    **applied("amax amin", 6, 0, [0], True),
    "logsumexp": Case(lambda h: aten.logsumexp(h, [0], True), 0, 0),
    "sum: over neurons": Case(lambda h: h.sum(1, True), 1, 0),
    "sum: of all": Case(lambda h: h.sum().view(1, 1), 1, 0),
    "sum: of truths": Case(lambda h: h * (h > 0).sum(0), 6, 0),
    "prod": Case(lambda h: h.prod(0, True), 0, 0),
    "any": Case(lambda h: h * (h > 0).any(0), 6, 0),
    "all": Case(lambda h: h * (h > 0).all(0), 6, 0),
    **applied("max min median nanmedian mode", 6, 0, 0, True, output=0),
    **applied("max min median nanmedian mode", 6, 0, 0, output=1, what="its position"),
    "max: of two": Case(lambda h, g: torch.max(h, g), 6, 0),
    "max: over neurons": Case(lambda h: h.max(1, True)[0], 1, 0),
    "max: position among neurons": Case(lambda h: h.max(1, True)[1], 1, 0),
    "max: of all": Case(lambda h: h.max() * h, 1, 0),
    "median: of all": Case(lambda h: h.median() * h, 1, 0),
    "kthvalue": Case(lambda h: h.kthvalue(2, 0, True)[0], 6, 0),
    "kthvalue: its position": Case(lambda h: h * h.kthvalue(2, 0)[1], 6, 0),
    "argmax": Case(lambda h: h * h.argmax(0), 6, 0),
    "argmin": Case(lambda h: h * h.argmin(1, True), 1, 0),
    "argmax: of all": Case(lambda h: h * h.argmax(), 1, 0),
    "softmax": Case(lambda h: h.softmax(1), 0, 0),
    "softmax: over heads": Case(lambda h: h.view(5, 2, 3).softmax(1).flatten(1), 0, 0),
    "log_softmax": Case(lambda h: h.log_softmax(0), 0, 0),
    **applied("_softmax _log_softmax", 0, 0, 1, False),
    **applied("special_softmax special_log_softmax", 0, 0, 1),
    **applied("logcumsumexp cumprod", 0, 0, 0),
    "cumsum": Case(lambda h: h.cumsum(0), 6, 6),
    "cumsum: over neurons": Case(lambda h: h.cumsum(1), 1, 0),
    "var": Case(lambda h: h.var(0, keepdim=True), 6, 6),
    "var: unbiased": Case(lambda h: h * h.var(0, True), 6, 6),
    "std": Case(lambda h: h.std(0, keepdim=True), 6, 6),
    "var_mean": Case(lambda h: sum(torch.var_mean(h, dim=[0], keepdim=True, unbiased=False)), 0, 0),
    "std_mean": Case(lambda h: sum(torch.std_mean(h, dim=[0], keepdim=True)), 6, 0),
    "var: over neurons": Case(lambda h: h * h.var(1, keepdim=True), 1, 0),
    "var: of all": Case(lambda h: h * h.var(), 1, 0),
    **applied("linalg_vector_norm linalg_norm norm", 6, 6, 2, [0], True),
    **applied("linalg_vector_norm linalg_norm norm", 6, 6, 0, [0], True, what="zeroth"),
    **applied("linalg_vector_norm linalg_norm norm", 6, 6, math.inf, [0], True, what="largest"),
    **applied("linalg_vector_norm linalg_norm norm", 6, 6, 1, [0], True, what="first"),
    "linalg_norm: spectral": Case(lambda h: h * torch.linalg.norm(h, 2), 1, 6),
    "linalg_matrix_norm": Case(lambda h: h * torch.linalg.matrix_norm(h), 1, 6),
    "frobenius_norm": Case(lambda h: aten.frobenius_norm(h, [0], True), 6, 6),
    "nuclear_norm": Case(lambda h: h * aten.nuclear_norm(h), 1, 6),
    "norm_except_dim": Case(lambda h: h * torch.norm_except_dim(h, 2, 1), 6, 6),
    "norm_except_dim: whole": Case(lambda h: h * torch.norm_except_dim(h, 2, -1), 1, 6),
    "cdist": Case(lambda h, g: torch.cdist(h, g), 1, 6),
    "cdist: zeroth": Case(lambda h, g: torch.cdist(h, g, 0.0), 6, 6),
    "cdist: largest": Case(lambda h, g: torch.cdist(h, g, math.inf), 1, 6),
    "_euclidean_dist": Case(lambda h, g: aten._euclidean_dist(h, g), 1, 6),
    "_cdist_forward": Case(lambda h, g: aten._cdist_forward(h, g, 2.0, None), 1, 6),
    "_weight_norm": Case(lambda h, weight, vector: (torch._weight_norm(weight, vector[:, None], 0) @ h.mT).mT, 13, 18),
    "_weight_norm_interface": Case(
        lambda h, weight, vector: (aten._weight_norm_interface(weight, vector[:, None], 0)[0] @ h.mT).mT,
        13, 18,
    ),
    "cosine_similarity": Case(lambda h, g: F.cosine_similarity(h, g, 0)[None], 0, 12),
    "cosine_similarity: over neurons": Case(lambda h, g: F.cosine_similarity(h, g, 1)[:, None], 0, 6),
}  # fmt: skip

MOVED: dict[str, Case] = {
    "permute": Case(lambda h: h.view(5, 2, 3).permute(0, 2, 1).flatten(1), 5, 5),
    "transpose": Case(lambda h: h.transpose(0, 1).transpose(0, 1), 6, 6),
    "swapaxes": Case(lambda h: h.swapaxes(0, 1).swapdims(0, 1), 6, 6),
    "swapdims": Case(lambda h: h.swapdims(0, 1).mT, 6, 6),
    "t": Case(lambda h: h.t().mT, 6, 6),
    "mT": Case(lambda h: h.mT.mT, 6, 6),
    "adjoint": Case(lambda h: h.adjoint().adjoint(), 6, 6),
    "matrix_H": Case(lambda h: aten.matrix_H(aten.matrix_H(h)), 6, 6),
    "numpy_T": Case(lambda h: aten.numpy_T(h.view(5, 2, 3)).permute(2, 1, 0).flatten(1), 6, 6),
    "movedim": Case(lambda h: h.view(5, 2, 3).movedim(2, 1).flatten(1), 5, 5),
    "moveaxis": Case(lambda h: h.view(5, 2, 3).moveaxis(2, 1).flatten(1), 5, 5),
    "unsqueeze": Case(lambda h: h.unsqueeze(1).squeeze(1), 6, 6),
    "squeeze": Case(lambda h: h[:, None].squeeze(), 6, 6),
    "view": Case(lambda h: h.view(5, 2, 3).tanh().view(5, 6), 0, 6),
    "view: bits": Case(lambda h: h + h.view(torch.int64) % 7, 0, 0),
    "reshape": Case(lambda h: h.reshape(5, 3, 2).flatten(1), 6, 6),
    "_unsafe_view": Case(lambda h: aten._unsafe_view(h, [5, 2, 3]).flatten(1), 6, 6),
    "_reshape_alias": Case(lambda h: aten._reshape_alias(h, [5, 6], [6, 1]), 6, 6),
    "view_as": Case(lambda h: h.view_as(h), 6, 6),
    "reshape_as": Case(lambda h: h.reshape_as(h), 6, 6),
    "flatten": Case(lambda h: h.view(5, 2, 3).flatten(1), 6, 6),
    "unflatten": Case(lambda h: h.unflatten(1, (2, 3)).flatten(1), 6, 6),
    "view_copy": Case(lambda h: aten.view_copy(h, [5, 2, 3]).flatten(1), 6, 6),
    "expand": Case(lambda h, g: h[:1].expand(5, 6) + g, 6, 6),
    "expand_as": Case(lambda h: h[:1].expand_as(h), 6, 6),
    "broadcast_to": Case(lambda h: h[:1].broadcast_to(5, 6), 6, 6),
    "expand_copy": Case(lambda h: aten.expand_copy(h[:1], [5, 6]), 6, 6),
    "repeat": Case(lambda h: h.repeat(1, 2), 6, 6),
    "tile": Case(lambda h: h.tile(2), 6, 6),
    "repeat_interleave": Case(lambda h: h.repeat_interleave(2, 1), 6, 6),
    "repeat_interleave: unevenly": Case(lambda h: h.repeat_interleave(COUNTS, 0), 6, 6),
    "select": Case(lambda h: h[:, 2:3] * h.select(1, 0)[:, None], 6, 3),
    "slice": Case(lambda h: h[:, 1:4], 6, 5),
    "slice: steps": Case(lambda h: h[:, ::2], 1, 0),
    "slice: of the batch": Case(lambda h: h[1:3], 6, 6),
    "narrow": Case(lambda h: h.narrow(1, 2, 3), 6, 5),
    "split": Case(lambda h: h.split([2, 4], 1)[1], 6, 6),
    "split_with_sizes": Case(lambda h: aten.split_with_sizes(h, [2, 4], 1)[0], 6, 6),
    "chunk": Case(lambda h: h.chunk(2, 1)[0] * h.chunk(2, 1)[1], 6, 6),
    "tensor_split": Case(lambda h: h.tensor_split(3, 1)[1], 6, 6),
    "unsafe_split": Case(lambda h: aten.unsafe_split(h, 3, 1)[1], 6, 6),
    "unsafe_chunk": Case(lambda h: aten.unsafe_chunk(h, 3, 1)[1], 6, 6),
    "unbind": Case(lambda h: sum(h.unbind(0)[:2])[None], 6, 6),
    "cat": Case(lambda h, g: aten.cat([h, g.tanh()], 1), 6, 12),
    "concat": Case(lambda h, g: aten.concat([h, g.tanh()], 1), 6, 12),
    "concatenate": Case(lambda h, g: aten.concatenate([h, g.tanh()], 1), 6, 12),
    "stack": Case(lambda h, g: torch.stack([h, g], 1).flatten(1), 7, 6),
    "hstack": Case(lambda h, g: torch.hstack([h, g]), 12, 12),
    "column_stack": Case(lambda h, g: torch.column_stack([h, g]), 12, 12),
    "vstack": Case(lambda h, g: torch.vstack([h, g]), 6, 6),
    "copy": Case(lambda h, g: aten.copy(g, h), 12, 12),
    "fill": Case(lambda h, g: h * aten.fill(g, 2.0), 12, 12),
    "pad": Case(lambda h: F.pad(h, (1, 1)), 8, 6),
    "pad: a number": Case(lambda h: F.pad(h, (0, 2), value=1.0), 0, 0),
    "pad: cut": Case(lambda h: F.pad(h, (0, -2)), 1, 0),
    "constant_pad_nd": Case(lambda h: aten.constant_pad_nd(h, [0, 2], 0.0), 8, 8),
    "pad: of the batch": Case(lambda h: F.pad(h, (0, 0, 1, 0)), 6, 6),
    "flip": Case(lambda h: h.flip(0), 6, 6),
    "flip: neurons": Case(lambda h: h.flip(1), 1, 0),
    "roll": Case(lambda h: h.roll(1, 0), 6, 6),
    "roll: of all": Case(lambda h: h.roll(2), 1, 0),
    "tril": Case(lambda h: h.view(5, 2, 3).tril().flatten(1), 1, 0),
    "triu": Case(lambda h: h.view(5, 2, 3).triu().flatten(1), 1, 0),
    "rot90": Case(lambda h: aten.rot90(h, 2, [0, 1]), 1, 0),
    "unfold": Case(lambda h: h.unfold(0, 2, 1).flatten(1), 6, 6),
}  # fmt: skip

INDEXED: dict[str, Case] = {
    "index": Case(lambda h: h[ROWS], 6, 6),
    "index: neurons": Case(lambda h: h[:, ROWS], 1, 0),
    "index: pairs": Case(lambda h: h[ROWS, ROWS].view(5, 1), 1, 0),
    "index: a mask": Case(lambda h: h[MASK], 6, 6),
    "index_select": Case(lambda h: h.index_select(0, ROWS), 6, 6),
    "index_select: by neurons": Case(lambda h: h.index_select(0, h[0].round().long() % 5), 0, 0),
    "one_hot": Case(lambda h: h * F.one_hot(h.argmax(1), 6), 1, 0),
    "gather": Case(lambda h: h.gather(0, ROWS[:, None].expand(5, 6)), 6, 6),
    "gather: neurons": Case(lambda h: h.gather(1, ROWS[:, None]), 1, 0),
    "gather: by neurons": Case(lambda h: h.gather(0, h.argmax(0, True)), 6, 0),
    "gather: in part": Case(lambda h: h.gather(0, PAIRS), 1, 0),
    "index_add": Case(lambda h, g: g.index_add(0, ROWS, h), 6, 6),
    "index_add: neurons": Case(lambda h, g: g.index_add(1, ROWS, h[:, :5]), 1, 0),
    "index_copy": Case(lambda h, g: g.index_copy(0, ROWS[:3], h[:3]), 6, 6),
    "index_fill": Case(lambda h: h.index_fill(0, ROWS[:2], 0.0), 6, 6),
    "index_fill: a number": Case(lambda h: h.index_fill(0, ROWS[:2], 1.0), 0, 0),
    "index_reduce": Case(lambda h, g: torch.index_reduce(g, 0, ROWS[:3], h[:3], "mean"), 6, 6),
    "index_reduce: largest": Case(lambda h, g: torch.index_reduce(g, 0, ROWS[:3], h[:3], "amax"), 6, 0),
    "index_reduce: product": Case(lambda h, g: torch.index_reduce(g, 0, ROWS[:3], h[:3], "prod"), 0, 0),
    "scatter": Case(lambda h, g: g.scatter(0, ROWS[:, None].expand(5, 6), h), 6, 6),
    "scatter: a number": Case(lambda g: g.scatter(0, ROWS[:, None].expand(5, 6)[:2], 1.0), 0, 0),
    "scatter_add": Case(
        lambda h: torch.zeros(4, 6, dtype=h.dtype).scatter_add(0, ROWS[:, None].expand(5, 6) % 4, h),
        6, 6,
    ),
    "scatter_add: in part": Case(lambda h, g: g.scatter_add(0, PAIRS, h), 1, 0),
    "scatter_reduce": Case(lambda h, g: g.scatter_reduce(0, ROWS[:, None].expand(5, 6), h, "mean"), 6, 6),
    "scatter_reduce: largest": Case(lambda h, g: g.scatter_reduce(0, ROWS[:, None].expand(5, 6), h, "amax"), 6, 0),
    "scatter_reduce: product": Case(lambda h, g: g.scatter_reduce(0, ROWS[:, None].expand(5, 6), h, "prod"), 0, 0),
    "index_put": Case(lambda h, g: g.index_put((ROWS[:3],), h[:3]), 6, 6),
    "index_put: a mask": Case(lambda g: g.index_put((MASK,), g.new_zeros(())), 6, 6),
    "index_put: pairs": Case(lambda h, g: g.index_put((ROWS, ROWS), h[:, 0]), 6, 5),
    "index_put: neurons": Case(lambda h, g: g.index_put((torch.arange(5)[:, None], PAIRS[:1]), h[:, :2]), 5, 4),
    "index_put: a mask of all": Case(lambda g: g.index_put((g > 0,), g.new_zeros(())), 1, 0),
    "index_put: added": Case(lambda h, g: g.index_put((ROWS,), h, accumulate=True), 6, 6),
    "select_scatter": Case(lambda h, g: g.select_scatter(h[0], 0, 1), 6, 6),
    "slice_scatter": Case(lambda h, g: g.slice_scatter(h[:2], 0, 1, 3), 6, 6),
    "slice_scatter: neurons": Case(lambda h, g: g.slice_scatter(h[:, :2], 1, 1, 3), 12, 11, "2 2 3 4"),
    "scaled_dot_product_attention": Case(
        lambda h, g: F.scaled_dot_product_attention(h.view(5, 2, 3), g.view(5, 2, 3), h.view(5, 2, 3)).flatten(1),
        3, 3,
    ),
}  # fmt: skip


def in_directions(n: int) -> dict[str, Case]:
    """Operators that there are for places in one, two and three directions."""
    upsample, convolve, back = F.interpolate, getattr(F, f"conv{n}d"), getattr(F, f"conv_transpose{n}d")

    def over(operator: str, *given: Any, scales: int = 6, flips: int = 6, output: int | None = None) -> Case:
        function = getattr(aten, operator)

        def called(h: Tensor) -> Tensor:
            found = function(on(h, n), *given)
            return spread(found if output is None else found[output].double())

        return Case(called, scales, flips)

    largest = {"max_pool1d": over("max_pool1d", [2], flips=0)}
    if n > 1:
        names = (f"max_pool{n}d", f"max_pool{n}d_with_indices")
        largest = {name: over(name, [2] * n, flips=0, output=i or None) for i, name in enumerate(names)}
    return largest | {
        f"adaptive_max_pool{n}d": over(f"adaptive_max_pool{n}d", [2] * n, flips=0, output=int(n == 1)),
        **{name: over(name, [2] * n) for name in (f"avg_pool{n}d", f"adaptive_avg_pool{n}d")},
        **{name: over(name, [1] * 2 * n) for name in (f"reflection_pad{n}d", f"replication_pad{n}d")},
        f"upsample_nearest{n}d": Case(lambda h: spread(upsample(on(h, n), scale_factor=2)), 6, 6),
        f"_upsample_nearest_exact{n}d": Case(
            lambda h: spread(upsample(on(h, n), scale_factor=2, mode="nearest-exact")), 6, 6
        ),
        f"conv{n}d": Case(lambda h, weight: spread(convolve(on(h, n), kernel(weight, n))), 12, 12),
        f"conv_transpose{n}d": Case(lambda h, weight: spread(back(on(h, n), kernel(weight, n))), 12, 12),
    }


PLACES: dict[str, Case] = {
    **in_directions(1), **in_directions(2), **in_directions(3),
    "max_pool1d: without a batch": Case(lambda h: F.max_pool1d(on(h, 1)[0], 2).flatten()[None], 6, 0),
    "avg_pool2d: without a batch": Case(lambda h: F.avg_pool2d(on(h, 2)[0], 2).flatten()[None], 6, 6),
    "upsample_linear1d": Case(lambda h: spread(F.interpolate(on(h, 1), scale_factor=2, mode="linear")), 6, 6),
    "upsample_bilinear2d": Case(lambda h: spread(F.interpolate(on(h, 2), scale_factor=2, mode="bilinear")), 6, 6),
    "upsample_bicubic2d": Case(lambda h: spread(F.interpolate(on(h, 2), scale_factor=2, mode="bicubic")), 6, 6),
    "_upsample_bilinear2d_aa": Case(
        lambda h: spread(F.interpolate(on(h, 2), scale_factor=2, mode="bilinear", antialias=True)),
        6, 6,
    ),
    "_upsample_bicubic2d_aa": Case(
        lambda h: spread(F.interpolate(on(h, 2), scale_factor=2, mode="bicubic", antialias=True)),
        6, 6,
    ),
    "upsample_trilinear3d": Case(lambda h: spread(F.interpolate(on(h, 3), scale_factor=2, mode="trilinear")), 6, 6),
    "pixel_shuffle": Case(lambda h, g: spread(F.pixel_shuffle(on(torch.cat([h, g], 1), 2), 2)), 1, 0),
    "pixel_unshuffle": Case(lambda h: spread(F.pixel_unshuffle(on(h, 2), 2)), 6, 6),
    "channel_shuffle": Case(lambda h: spread(F.channel_shuffle(on(h, 2), 2)), 5, 5),
    "im2col": Case(lambda h: spread(F.unfold(on(h, 2), 2)), 6, 6),
    "convolution": Case(
        lambda h, weight: (
            spread(aten.convolution(on(h, 2), kernel(weight, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1))
        ),
        12, 12,
    ),
    "max_unpool2d": Case(lambda h: spread(unpooled(on(h, 2), 2)), 6, 0, "6"),
    "max_unpool3d": Case(lambda h: spread(unpooled(on(h, 3), 3)), 6, 0, "6"),
    "max_unpool2d: of others": Case(
        lambda h, g: spread(
            F.max_unpool2d(on(g, 2)[..., :2, :2], F.max_pool2d(on(h, 2), 2, return_indices=True)[1], 2)
        ),
        12, 6, "6",
    ),
    "grid_sampler_2d": Case(lambda h: spread(F.grid_sample(on(h, 2), GRID, align_corners=False)), 6, 6, "6"),
    "grid_sampler_3d": Case(
        lambda h: spread(F.grid_sample(on(h, 3), GRID3, align_corners=False, padding_mode="border")), 6, 6, "6"
    ),
    "grid_sampler_2d: at neurons": Case(
        lambda h, g: spread(F.grid_sample(on(h, 2), g.sin().view(5, 1, 3, 2), align_corners=False)), 6, 6, "6"
    ),
    "col2im": Case(lambda h: spread(F.fold(F.unfold(on(h, 2), 2).sin(), (4, 4), 2)), 0, 6, "6"),
    "unfold: of places": Case(
        lambda h: (on(h, 2).unfold(2, 2, 1).unfold(3, 2, 1).cos().sum((4, 5))).flatten(2).mean(2), 0, 6, "6"
    ),
    "_adaptive_avg_pool2d": Case(lambda h: spread(aten._adaptive_avg_pool2d(on(h, 2), [2, 2])), 6, 6),
    "_adaptive_avg_pool3d": Case(lambda h: spread(aten._adaptive_avg_pool3d(on(h, 3), [2, 2, 2])), 6, 6),
}  # fmt: skip

SPECTRAL: dict[str, Case] = {
    "_fft_r2c": Case(lambda h: torch.fft.rfft(h, dim=0).abs(), 6, 6, "6"),
    "_fft_r2c: over neurons": Case(lambda h: torch.fft.rfft(h, dim=1).abs(), 1, 0, ""),
    "_fft_c2c": Case(lambda h: torch.fft.fft2(on(h, 2)).imag.flatten(2).square().sum(2).sqrt(), 6, 6, "6"),
    "_fft_c2r": Case(lambda h: spread(torch.fft.irfft(torch.fft.rfft(on(h, 1), n=6) ** 3, n=5)), 6, 6, "6"),
    "_fft_c2r: filtered": Case(lambda h, third: filtered(h, third), 12, 12, "6 6"),
    "view_as_complex": Case(lambda h: torch.view_as_complex(h.view(5, 3, 2)).abs(), 3, 3, "3"),
    "view_as_complex: neurons": Case(lambda h: torch.view_as_complex(h.view(5, 2, 3).mT.contiguous()).abs(), 3, 3, "3"),
    "view_as_real": Case(lambda h: torch.view_as_real(h.to(torch.complex128) ** 2)[..., 0], 6, 6, "6"),
    "complex": Case(lambda h, g: torch.complex(h, g).abs(), 6, 6, "6"),
    "polar": Case(lambda h, g: torch.polar(h.abs(), g).real, 6, 6, "6"),
    "imag": Case(lambda h, g: torch.complex(h, g).imag, 6, 6, "6"),
    "angle": Case(lambda h, g: torch.complex(h, g).angle(), 6, 0, "6"),
}  # fmt: skip

RANKED: dict[str, Case] = {
    "topk": Case(lambda h: h.topk(3, 0)[0], 6, 0, "6"),
    "topk: over neurons": Case(lambda h: h.topk(3, 1)[0], 1, 0, "6"),
    "topk: in no order": Case(lambda h: h.topk(3, 1, sorted=False)[0], 0, 0, ""),
    "topk: its positions": Case(lambda h: h.topk(3, 1)[1], 1, 0, ""),
    "topk: its positions added up": Case(lambda h: h * h.topk(3, 1)[1].sum(1, True), 1, 0, ""),
    "sort": Case(lambda h: h.sort(0)[0], 6, 0, "6"),
    "sort: over neurons": Case(lambda h: h.sort(stable=True, dim=1, descending=True)[0], 1, 0, "6"),
    "sort: by others": Case(lambda h, g: h.gather(1, g.argsort(1)), 2, 0, "6"),
    "argsort": Case(lambda h: h[h.argsort(0)[:, 0]], 6, 0, "5"),
    "msort": Case(lambda h: h.msort(), 6, 0, "6"),
    "gather: at the largest": Case(lambda h, g: h.gather(1, g.topk(2, 1)[1]), 2, 0, "6"),
    "gather: at the largest of rows": Case(lambda h, g: g.gather(0, h.topk(2, 0)[1]), 12, 6, "6"),
    "index_select: the largest": Case(lambda h, vector: h.index_select(1, vector.topk(3)[1]), 2, 0, "6"),
    "index: at the largest of a table": Case(lambda h, weight: h * weight[h.argmax(1)], 7, 6, "6"),
    "experts": Case(lambda h, weight: gathered(h, weight), 0, 6, "6 6"),
}  # fmt: skip

FAMILIES = {
    "pointwise": POINTWISE, "products": PRODUCTS, "statistics": STATISTICS, "moved": MOVED, "indexed": INDEXED,
    "places": PLACES, "ranked": RANKED,
    "spectral": SPECTRAL,
}  # fmt: skip
CASES = {name: case for family in FAMILIES.values() for name, case in family.items()}

# Those that have tests of whole networks, and other names of these.
ELSEWHERE = """
gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell _native_batch_norm_legit
max_pool1d_with_indices flex_attention
"""


def part(found: Derivation, number: int) -> Derivation:
    """What a derivation says of one of several networks."""
    own = {name: dims for name, dims in found.parameters.items() if name.startswith(f"networks.{number}.")}
    factors = (f for dims in own.values() for dim in dims for segment in segments_of(dim) for f in segment)
    used = {factor.node for factor in factors if isinstance(factor, Axis)}
    used |= {parent for name in used if (parent := found.nodes[name].parent) is not None}
    return Derivation({name: node for name, node in found.nodes.items() if name in used}, own, found.origin, {})


def changes(module: Beside, found: Derivation) -> list[float]:
    """The largest relative change of every network's outputs, at random weights under random elements."""
    largest = [0.0] * len(module.networks)
    for seed in range(3):
        weights = module.weights(torch.Generator().manual_seed(seed))
        with torch.no_grad():
            before = torch.func.functional_call(module, weights, (VECTOR,))
            after = torch.func.functional_call(module, weights | Element(found, seed).act(weights), (VECTOR,))
        assert all(bool(y.isfinite().all()) for y in before)
        errors = [float((y - z).abs().max() / y.abs().max()) for y, z in zip(before, after, strict=True)]
        largest = list(map(max, largest, errors))
    return largest


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The use of")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_rule_leaves_what_it_should_and_keeps_the_function(family):
    cases = FAMILIES[family]
    module = Beside(cases)
    found = derive(module, VECTOR)
    assert found.origin.unknown == ()
    parts = {name: part(found, n) for n, name in enumerate(cases)}
    assert {n: (scalings(p), signs(p)) for n, p in parts.items()} == {n: (c.scales, c.flips) for n, c in cases.items()}
    known = {n: c.permuted.split() for n, c in cases.items() if c.permuted is not None}
    assert {n: permutations(parts[n]) for n in known} == known
    wrong = {name: change for name, change in zip(cases, changes(module, found), strict=True) if not change < 1e-9}
    assert not wrong


def test_every_rule_has_a_case():
    rules = {name for name in ruled() if "." not in name}
    assert rules - {name.split(":")[0] for name in CASES} - set(ELSEWHERE.split()) == set()


# Steps, whose derivative is 0, positions, which stay as they are nearby, entries that are read at these alone, and what
# the rules do not find: the count is another one, for which there is a reason.
UNCOUNTED = """
detach | hardshrink | relu6 | nan_to_num | logit | sgn | sign | floor_divide | logical_and | logical_or |
logical_xor | bitwise_and | bitwise_or | bitwise_xor | __and__ | __or__ | isfinite | xlogy | eq | ne | not_equal |
isclose | type_as | threshold | div: rounded | pow: tensors | clamp: uneven | gt: a number | ne: a number |
masked_fill | masked_fill: infinity | _prelu_kernel | bmm | dot | vdot | baddbmm | addbmm | embedding_bag: sum |
rms_norm | native_layer_norm: its mean | batch_norm | batch_norm: of the batch |
_native_batch_norm_legit_no_training | prod | max: position among neurons | argmin | argmax: of all |
linalg_vector_norm: zeroth | linalg_norm: zeroth | norm: zeroth | cdist: zeroth | cosine_similarity |
cosine_similarity: over neurons | permute | movedim | moveaxis | select | slice | slice: steps | narrow | split |
split_with_sizes | tensor_split | unsafe_split | unsafe_chunk | stack | copy | fill | pad | pad: a number | pad: cut
| constant_pad_nd | flip: neurons | roll: of all | tril | triu | rot90 | index: neurons | index_select: by neurons |
gather: in part | index_add: neurons | index_reduce: product | scatter_add: in part | scatter_reduce: product |
index_put: pairs | index_put: neurons | index_put: a mask of all | slice_scatter: neurons | adaptive_max_pool1d |
max_pool2d_with_indices | max_pool3d_with_indices | pixel_shuffle | channel_shuffle | batch_norm: of a weight |
gather: at the largest | gather: at the largest of rows | index: at the largest of a table |
index_select: the largest | max: of all | max_unpool2d: of others | median: of all | sort: by others | sum: of all |
topk: in no order | topk: its positions | topk: its positions added up
"""


@pytest.mark.networks
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(" ".join(UNCOUNTED.split()).split(" | "))))
def test_as_many_scalings_are_found_as_are_counted(name):
    torch.manual_seed(0)
    function = Function(Between(CASES[name].function), lambda: (torch.randn(5, 4),))
    assert counted(function).count == CASES[name].scales
