"""Spaces of networks: counted scalings, charges, nests, sums; that groups keep functions, and what is reported."""

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Of, error, scalings
from deriving import derive
from torch import Tensor, nn

from nfn_monomial.space.axes import Axis, Sum, flatten_dims
from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace import register_operator
from nfn_monomial.trace.operators import OPERATORS

SCALE, SIGN, MONOMIAL = Symmetry.SCALE, Symmetry.SIGN, Symmetry.MONOMIAL
PERMUTATION, FIXED = Symmetry.PERMUTATION, Symmetry.FIXED


class Attention(nn.Module):
    """Queries, keys and values in one layer, over heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], 3, self.heads, x.shape[2] // self.heads)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / 2).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


def block() -> nn.Module:
    """A transformer block of width 6 and 2 heads between linear maps, with a final norm."""
    return Of(
        lambda s, x: s.leave(s.norm(_branches(s, s.enter(x)))),
        enter=nn.Linear(3, 6),
        norm1=nn.LayerNorm(6),
        attention=Attention(6, 2),
        norm2=nn.LayerNorm(6),
        mlp=nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6)),
        norm=nn.LayerNorm(6),
        leave=nn.Linear(6, 2),
    )


def _branches(s, x: Tensor) -> Tensor:
    x = x + s.attention(s.norm1(x))
    return x + s.mlp(s.norm2(x))


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


IMAGE, SEQUENCE, VECTOR = torch.randn(2, 2, 7, 7), torch.randn(2, 4, 3), torch.randn(5, 4)


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 6), activation, nn.Linear(6, 3))


def test_an_even_function_leaves_rows_their_signs():
    module = Of(lambda s, x: s.b(torch.cos(s.a(x))), a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    found = derive(module, VECTOR)
    assert found.nodes["a"].gauges == (PERMUTATION, SIGN)
    assert found.parameters["a.weight"][0] == Axis("a", (1, 1))
    assert found.parameters["b.weight"][1] == Axis("a", (-1, 0))
    assert error(module, found, (VECTOR,)) < 1e-9


def test_a_batch_norm_breaks_what_is_in_front_but_for_its_mean():
    found = derive(convolutions(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)), IMAGE)
    assert found.nodes["layer0"].gauges == (PERMUTATION, MONOMIAL, SCALE)
    charges = {name: dims[0].charge for name, dims in found.parameters.items() if name != "3.weight" and dims}
    assert charges.pop("3.bias") == 1
    assert charges == {
        "0.weight": (1, 1, 0), "0.bias": (1, 1, 0), "1.running_mean": (1, 1, 0),
        "1.running_var": (0, 0, 0), "1.weight": (0, -1, 1), "1.bias": (1, 0, 1),
    }  # fmt: skip
    assert found.parameters["3.weight"][1] == Axis("layer0", (-1, 0, -1))


def test_queries_keys_and_values_are_a_sum_of_channels_in_heads():
    module = block()
    found = derive(module, SEQUENCE)
    rows = found.parameters["attention.qkv.weight"][0]
    assert isinstance(rows, Sum)
    heads, queries = (axis.node for axis in rows.parts[0])
    values = rows.parts[2][1].node
    assert found.nodes[queries].parent == found.nodes[values].parent == heads
    assert (found.nodes[heads].gauges, found.nodes[queries].gauges) == ((PERMUTATION,), (PERMUTATION, MONOMIAL))
    assert [part[1].charge for part in rows.parts[:2]] == [(1, 1), (1, -1)]
    assert found.parameters["attention.out.weight"][1] == (Axis(heads, -1), Axis(values, -1))


def test_a_scale_without_an_axis_is_a_node_of_size_1():
    module = Of(lambda s, x: s.b(s.alpha * F.gelu(s.a(x))), a=nn.Linear(4, 5), b=nn.Linear(5, 3), alpha=nn.Parameter(
        torch.ones(1)
    ))  # fmt: skip
    found = derive(module, VECTOR)
    assert found.parameters["alpha"] == (Axis("c1", 1),)
    assert found.nodes["c1"].size == 1
    assert found.nodes["c1"].gauges == (MONOMIAL,)
    assert scalings(found) == 1
    assert error(module, found, (VECTOR,)) < 1e-9


def test_tied_weights_are_one_parameter():
    module = Of(
        lambda s, x: F.linear(s.norm(s.word(x)), s.head.weight), word=nn.Embedding(7, 5), norm=nn.LayerNorm(5),
        head=nn.Linear(5, 7, bias=False),
    )  # fmt: skip
    module.head.weight = module.word.weight
    tokens = torch.randint(7, (2, 4))
    found = derive(module, tokens)
    assert list(found.parameters) == ["word.weight", "norm.weight", "norm.bias"]
    words = flatten_dims(found.parameters["word.weight"][:1])
    assert found.nodes[words[0].node].gauges == (FIXED,)
    assert error(module, found, (tokens,)) < 1e-9


def test_operators_without_a_rule_that_a_probe_cannot_help_fix_what_they_meet_and_are_reported():
    module = Of(lambda s, x: s.b(torch.cummax(s.a(x), 1)[0]), a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    found = derive(module, VECTOR)
    assert (found.origin.unknown, found.origin.probed) == (("cummax",), ())
    assert found.nodes["a"].gauges == (FIXED,)
    assert any(loss.node == "a" and "cummax" in loss.reason for loss in found.origin.losses)


def test_a_rule_says_more_than_a_probe():
    module = Of(lambda s, x: s.b(torch.special.bessel_j0(s.a(x))), a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    found = derive(module, VECTOR)
    assert (found.origin.unknown, found.origin.probed) == ((), ("special_bessel_j0",))
    assert found.nodes["a"].gauges == (PERMUTATION,)
    assert any(loss.node == "a" and "special_bessel_j0" in loss.reason for loss in found.origin.losses)
    register_operator(torch.ops.aten.special_bessel_j0.default, lambda run, x: run.unary(x, "even"))
    try:
        found = derive(module, VECTOR)
        assert found.nodes["a"].gauges == (PERMUTATION, SIGN)
        assert error(module, found, (VECTOR,)) < 1e-9
    finally:
        del OPERATORS["special_bessel_j0"]
    with pytest.raises(TypeError, match="is no operator"):
        register_operator(len, lambda run, x: x)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_bias_of_keys_is_dead(norm_first):
    module = Of(
        lambda s, x: s.layer(s.enter(x)), enter=nn.Linear(3, 6),
        layer=nn.TransformerEncoderLayer(6, 2, 5, batch_first=True, norm_first=norm_first),
    )  # fmt: skip
    found = derive(module, SEQUENCE)
    assert [(dead.parameter, dead.left_out) for dead in found.origin.dead] == [
        ("layer.self_attn.in_proj_bias[1]", False)
    ]
    assert "softmax" in found.origin.dead[0].reason
    found = derive(block(), SEQUENCE)
    assert [dead.parameter for dead in found.origin.dead] == ["attention.qkv.bias[1]"]


def test_what_an_operator_without_a_rule_reads_is_not_dead():
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 6) for _ in range(3))

        def forward(self, x):
            scores = self.q(x) @ self.k(x).mT
            return scores.softmax(-1) @ self.v(x), torch.special.bessel_j0(scores)

    assert derive(Scores(), VECTOR).origin.dead == ()


def test_a_bias_in_front_of_statistics_of_the_example_is_dead():
    layers = nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 3, 1)
    assert [dead.parameter for dead in derive(convolutions(*layers), IMAGE).origin.dead] == ["0.bias"]


def with_buffer(module: nn.Module, buffer: torch.Tensor) -> nn.Module:
    module.register_buffer("b", buffer)
    return module


def overlapping() -> nn.Module:
    whole = torch.randn(20)
    module = Of(lambda s, x: F.linear(x, s.a) @ s.b, a=nn.Parameter(whole[:12].view(3, 4)))
    module.b = nn.Parameter(whole[6:12].view(3, 2))
    return module


def with_entry(value: float) -> nn.Module:
    module = nn.Linear(4, 3)
    with torch.no_grad():
        module.weight[0, 0] = value
    return module


class Experts(nn.Module):
    """As transformers has them: sums over tokens of each expert, how many these are depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def set_experts_implementation(self, how: str) -> None:
        raise NotImplementedError

    def forward(self, x):
        return x[x[:, 0] > 0][: int((x > 0).sum())] @ self.weight


BAD = {
    "shape": (lambda: nn.Linear(3, 2), r"Linear does not run on the example inputs, torch.float32 \(5, 4\)"),
    "branch": (lambda: Of(lambda s, x: s.a(x) if x.sum() > 0 else x, a=nn.Linear(4, 4)), "cannot be exported.*where"),
    "complex": (
        lambda: Of(lambda s, x: x, a=nn.Parameter(torch.ones(2, dtype=torch.cfloat))),
        "a has dtype torch.comp",
    ),
    "nan": (lambda: with_entry(float("nan")), "weight has entries that are NaN"),
    "sparse": (
        lambda: Of(lambda s, x: torch.sparse.mm(s.a, x.T), a=nn.Parameter(torch.eye(4).to_sparse())),
        r"^a is a sparse tensor \(torch.sparse_coo\), a dense one is expected: .*to_dense\(\)",
    ),
    "sparse buffer": (
        lambda: with_buffer(nn.Linear(4, 4), torch.eye(4).to_sparse()),
        r"^b is a sparse tensor \(torch.sparse_coo\), a dense one",
    ),
    "experts": (Experts, r"cannot be exported.*set_experts_implementation\('batched_mm'\)"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "0.weight has no shape yet"),
    "views": (overlapping, "a and b are overlapping views"),
    "nothing": (lambda: Of(lambda s, x: x.relu(), a=nn.Linear(4, 4)), "uses none of its parameters"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(name):
    build, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        derive(build(), VECTOR)
