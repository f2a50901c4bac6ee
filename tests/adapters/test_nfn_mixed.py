"""Where nfn's own layers may stand: measured, as the page says it, and as a stack takes or refuses them."""

import copy
from pathlib import Path

import pytest
import torch
from nfn.layers import (
    ChannelDropout,
    ChannelLinear,
    CrossAttnEncoder,
    GaussianFourierFeatureTransform,
    HNPLinear,
    HNPPool,
    IOSinusoidalEncoding,
    LearnedPosEmbedding,
    LearnedScale,
    NPAttention,
    NPLinear,
    NPPool,
    ParamLayerNorm,
    Pointwise,
    ResBlock,
    SimpleLayerNorm,
    StatFeaturizer,
    TupleOp,
)
from nfn_networks import SIREN, features, spec_of
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.nfn import (
    MonomialActivation,
    MonomialBalance,
    MonomialCanonicalize,
    MonomialChannelLinear,
    MonomialLinear,
    MonomialPool,
    MonomialStack,
    MonomialStatistics,
    check_invariant,
)
from nfn_monomial.testing import assert_equivariant, assert_invariant

SIZES = [3, 5, 4, 2]
SPEC = spec_of(WeightSpace.mlp(SIZES, "relu"), known=False)
PLACES = {
    "before, ReLU": {"symmetry": "relu"},
    "before, tanh or sine": {"symmetry": "tanh"},
    "after": {"symmetry": "permutation"},
    "after, inputs and outputs permuted": {"symmetry": "permutation", "io_symmetry": "permutation"},
}
LAYERS = {
    "LearnedScale": lambda: LearnedScale(SPEC, 0.5),
    "ChannelDropout": lambda: ChannelDropout(0.5),
    "TupleOp(nn.ReLU())": lambda: TupleOp(nn.ReLU()),
    "TupleOp(torch.sin)": lambda: TupleOp(torch.sin),
    "TupleOp(nn.GELU())": lambda: TupleOp(nn.GELU()),
    "TupleOp(nn.Dropout(0.5))": lambda: TupleOp(nn.Dropout(0.5)),
    "TupleOp(ChannelLinear(..., bias=False))": lambda: TupleOp(ChannelLinear(4, 3, bias=False)),
    "TupleOp(ChannelLinear(...))": lambda: TupleOp(ChannelLinear(4, 3)),
    "SimpleLayerNorm": lambda: SimpleLayerNorm(SPEC, 4),
    "ParamLayerNorm": lambda: ParamLayerNorm(SPEC, 4),
    "Pointwise": lambda: Pointwise(SPEC, 4, 3),
    "NPLinear": lambda: NPLinear(SPEC, 4, 3),
    "NPLinear(..., io_embed=True)": lambda: NPLinear(SPEC, 4, 3, io_embed=True),
    "HNPLinear": lambda: HNPLinear(SPEC, 4, 3),
    "NPAttention": lambda: NPAttention(SPEC, 4, num_heads=2),
    "GaussianFourierFeatureTransform": lambda: GaussianFourierFeatureTransform(SPEC, 4, mapping_size=3, scale=1),
    "IOSinusoidalEncoding": lambda: IOSinusoidalEncoding(SPEC),
    "LearnedPosEmbedding": lambda: LearnedPosEmbedding(SPEC, 4),
    "ResBlock": lambda: ResBlock(NPAttention(SPEC, 4, num_heads=2), TupleOp(nn.ReLU()), 0.5, SimpleLayerNorm(SPEC, 4)),
    "NPPool": lambda: NPPool(SPEC),
    "HNPPool": lambda: HNPPool(SPEC),
    "StatFeaturizer": lambda: StatFeaturizer(),
    "CrossAttnEncoder": lambda: CrossAttnEncoder(SPEC, 4, 3),
}
READERS = {"NPPool", "HNPPool", "StatFeaturizer", "CrossAttnEncoder"}


def drawn(module):
    """The module in eval mode, none of whose parameters is 0, as after training."""
    generator = torch.Generator().manual_seed(0)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    return module.double().eval()


def page():
    """Layer -> place -> what the page says of it."""
    lines = Path(__file__).parents[2].joinpath("docs", "nfn.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| layer of nfn |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next(i for i, row in enumerate(rows) if len(row) < 2)
    head, _, *body = rows[:end]
    assert head[1:] == list(PLACES)
    known = [(names.split(" of `")[0], cells) for names, *cells in body]
    return {name: dict(zip(PLACES, cells, strict=True)) for names, cells in known for name in names.split("`")[1::2]}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", LAYERS)
def test_where_a_layer_of_nfn_may_stand(name, place):
    space = WeightSpace.mlp(SIZES, **PLACES[place])
    layer, x = drawn(LAYERS[name]()), features(space, batch=4, c=4)
    if name == "StatFeaturizer":  # which knows float32 alone
        x = x.map(torch.Tensor.float)
    assert_kept = assert_invariant if name in READERS else assert_equivariant
    said = page()[name][place]
    assert said in ("yes", "breaks")
    front = MonomialChannelLinear(SPEC, 4, 4, **PLACES[place])
    if said == "yes":
        assert_kept(layer, space, inputs=x)
        assert isinstance(MonomialStack(SPEC, front, layer), MonomialStack)
    else:
        with pytest.raises(AssertionError, match=r"not (in|equi)variant"):
            assert_kept(layer, space, inputs=x)
        with pytest.raises(ValueError, match=r"of the MonomialStack breaks (scalings|permutations of inputs)"):
            MonomialStack(SPEC, front, layer)


def test_the_page_lists_these_layers_and_no_others():
    assert page().keys() == LAYERS.keys()


# -- in one stack -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["relu", "tanh"])
def test_a_stack_of_both_is_invariant_and_answers_as_a_sequence(symmetry):
    torch.manual_seed(0)
    space = WeightSpace.mlp(SIZES, symmetry)
    parts = [
        LearnedScale(SPEC, 0.5),
        MonomialLinear(SPEC, 1, 4, symmetry=symmetry),
        TupleOp(nn.ReLU() if symmetry == "relu" else torch.tanh),
        nn.Sequential(MonomialLinear(SPEC, 4, 4, symmetry=symmetry), ChannelDropout(0.2)),
        MonomialCanonicalize(SPEC, 4, symmetry=symmetry),
        ResBlock(NPAttention(SPEC, 4, num_heads=2), TupleOp(nn.ReLU()), 0.1, SimpleLayerNorm(SPEC, 4)),
        MonomialLinear(SPEC, 4, 2, symmetry="permutation"),
        GaussianFourierFeatureTransform(SPEC, 2, mapping_size=2, scale=0.1),
        HNPPool(SPEC),
    ]
    stack, x = MonomialStack(SPEC, *parts).double().eval(), features(space, batch=4)
    torch.testing.assert_close(stack(x), nn.Sequential(*parts)(x), rtol=1e-12, atol=1e-12)
    assert_invariant(stack, space, inputs=x)
    stack.train()(x).sum().backward()
    assert all(p.grad is not None for p in stack.parameters())


def test_statistics_need_no_canonical_form_and_return_a_tensor():
    layers = [MonomialLinear(SPEC, 1, 2, symmetry="relu"), MonomialStatistics(SPEC, 2, symmetry="relu")]
    stack, x = MonomialStack(SPEC, *layers).double(), features(WeightSpace.mlp(SIZES, "relu"))
    torch.testing.assert_close(stack(x), nn.Sequential(*layers)(x))
    assert stack(x).shape == (3, 2, layers[1].num_outs)
    check_invariant(stack, SPEC)
    with pytest.raises(ValueError, match="cannot come after MonomialStatistics, which returns a tensor"):
        MonomialStack(SPEC, *layers, MonomialPool(SPEC))


def test_layers_of_nfn_are_refused_where_biases_are_missing():
    spec = spec_of(WeightSpace.mlp(SIZES, "relu", [True, False, True]))
    layers = [MonomialLinear(spec, 1, 2, symmetry="relu"), MonomialCanonicalize(spec, 2, symmetry="relu")]
    assert isinstance(MonomialStack(spec, *layers, MonomialPool(spec)), MonomialStack)
    with pytest.raises(ValueError, match=r"layer 2 \(LearnedScale\) .* takes no networks without some of their biases"):
        MonomialStack(spec, *layers, LearnedScale(spec, 1.0))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ResBlock(HNPLinear(SPEC, 2, 2), nn.Identity(), 0, nn.Identity()), r"base_layer \(HNPLinear\) of layer 1 "),
        (nn.Sequential(TupleOp(torch.cos)), r"0 \(TupleOp\) of layer 1 .* breaks scalings"),
        (
            ResBlock(MonomialCanonicalize(SPEC, 2, symmetry="relu"), nn.Identity(), 0, nn.Identity()),
            r"layer 1 \(ResBlock\) of the MonomialStack adds features to others of another space",
        ),
        (
            nn.Sequential(MonomialStatistics(SPEC, 2, symmetry="relu"), nn.Identity()),
            r"1 \(Identity\) of layer 1 .* follows a layer that returns a tensor",
        ),
        (nn.Sequential(MonomialLinear(SPEC, 2, 2, symmetry="tanh")), r"0 \(MonomialLinear\) of layer 1 .* takes feat"),
    ],
)
def test_blocks_are_looked_into(block, message):
    with pytest.raises(ValueError, match=message):
        MonomialStack(SPEC, MonomialLinear(SPEC, 1, 2, symmetry="relu"), block)


# -- whole pipelines --------------------------------------------------------------------------------------------------


def head(channels):
    return [nn.Flatten(), nn.Linear(channels * HNPPool.get_num_outs(SPEC), 2)]


def test_a_pipeline_without_a_canonical_form_is_told_so():
    """What the class names alone make: equivariant, not invariant."""
    swapped = nn.Sequential(
        MonomialLinear(SPEC, 1, 4, symmetry="relu"),
        MonomialActivation(SPEC, "relu", symmetry="relu"),
        MonomialLinear(SPEC, 4, 4, symmetry="relu"),
        HNPPool(SPEC),
        *head(4),
    )
    with pytest.raises(AssertionError, match=r"not invariant .*layer 3 \(HNPPool\) breaks .* put a MonomialCanonicali"):
        check_invariant(swapped, SPEC)
    swapped.insert(3, MonomialCanonicalize(SPEC, 4, symmetry="relu"))
    check_invariant(swapped, SPEC)


def test_a_layer_that_breaks_once_it_is_trained_is_found_before():
    """SimpleLayerNorm in front flips with the signs as long as its beta is 0."""
    torch.manual_seed(0)
    pipeline = nn.Sequential(
        MonomialLinear(SPEC, 1, 4, symmetry="tanh"),
        SimpleLayerNorm(SPEC, 4),
        MonomialCanonicalize(SPEC, 4, symmetry="tanh"),
        HNPPool(SPEC),
    ).double()
    x, before = features(WeightSpace.mlp(SIZES, "tanh"), batch=4), copy.deepcopy(pipeline.state_dict())
    assert_invariant(pipeline, WeightSpace.mlp(SIZES, "tanh"), inputs=x)
    with pytest.raises(AssertionError, match=r"layer 1 \(SimpleLayerNorm\) breaks scalings and sign flips"):
        check_invariant(pipeline, SPEC, inputs=x)
    assert pipeline.training
    assert all(torch.equal(t, before[name]) for name, t in pipeline.state_dict().items())


def test_a_pipeline_of_nfn_alone_is_told_what_it_lacks():
    pipeline = nn.Sequential(HNPLinear(SPEC, 1, 4), TupleOp(nn.ReLU()), HNPPool(SPEC), *head(4))
    check_invariant(pipeline, SPEC, symmetry="permutation")
    with pytest.raises(ValueError, match="give symmetry="):
        check_invariant(pipeline, SPEC)
    with pytest.raises(AssertionError, match=r"layer 0 \(HNPLinear\) breaks scalings"):
        check_invariant(pipeline, SPEC, symmetry="relu")
    check_invariant(nn.Sequential(MonomialBalance(SPEC, symmetry="relu"), *pipeline).double(), SPEC)


def test_any_function_is_a_pipeline():
    check_invariant(lambda x: x.biases[-1].exp(), SPEC, symmetry=["relu", "sin"])
    with pytest.raises(
        AssertionError, match=r"not invariant .* so scales or signs are left: put a MonomialCanonicalize"
    ):
        check_invariant(lambda x: x.weights[0].mean((2, 3)), SPEC, symmetry="relu")
    with pytest.raises(AssertionError, match=r"not invariant .* Permutations of neurons alone change it"):
        check_invariant(lambda x: x.weights[0][:, :, 0].sign(), SPEC, symmetry="relu")
    with pytest.raises(AssertionError, match=r"invariance of a constant proves nothing$"):
        check_invariant(lambda x: 0 * x.biases[-1], SPEC, symmetry="relu")
    with pytest.raises(TypeError, match="returns WeightSpaceFeatures, not a tensor: put a pool at its end"):
        check_invariant(MonomialLinear(SPEC, 1, 1, symmetry="relu"), SPEC)


@pytest.mark.parametrize("fn", [assert_invariant, assert_equivariant])
def test_checks_take_nfns_features(fn):
    x = features(SIREN, c=2, batch=4)
    layer = MonomialLinear(spec_of(SIREN), 2, 2, symmetry="sin").double()
    wrong = HNPLinear(spec_of(SIREN, known=False), 2, 2).double()
    if fn is assert_invariant:
        rest = [MonomialCanonicalize(spec_of(SIREN), 2, symmetry="sin").double(), MonomialPool(spec_of(SIREN))]
        layer, wrong = nn.Sequential(layer, *rest), nn.Sequential(wrong, *rest)
    fn(layer, SIREN, inputs=x)
    with pytest.raises(AssertionError, match=r"not (in|equi)variant"):
        fn(wrong, SIREN, inputs=x)
