"""The layers are ordinary torch modules: compile, vmap, functional_call, autocast, dtypes, copies, state dicts."""

import pytest
import torch

from nfn_monomial import (
    Axis,
    Canonicalize,
    EquivariantLinear,
    EquivariantNFN,
    MonomialNFN,
    Symmetry,
    WeightSpace,
    balance,
)
from nfn_monomial.testing import random_networks

SPACES = [
    WeightSpace.cnn([1, 4, 4], 3, "relu", head=[3]),
    WeightSpace.mlp([2, 4, 4, 1], ["sin", "gelu"]),
    WeightSpace.mlp([2, 4, 3], "gelu", io_symmetry="permutation"),
    WeightSpace({"h": (Symmetry.SIGN, 4)}, {"loop": (Axis("h", 1), Axis("h", -1)), "b": (Axis("h"),)}),
]
over_spaces = pytest.mark.parametrize("space", SPACES, ids=str)


def network(space, seed=0, **kwargs):
    torch.manual_seed(seed)
    return MonomialNFN(space, (4, 3), hidden=8, **kwargs)


def inputs(space, batch=3, dtype=torch.float32):
    return random_networks(space, batch, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("space", "io", "packed"),
    [(SPACES[0], "full", False), (SPACES[3], "factored", True)],  # and below, with gradients
    ids=str,
)
def test_compiles_as_one_graph(space, io, packed):
    model, x = network(space, io=io), inputs(space)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(space.pack(x) if packed else x), model(x))


def test_compiled_gradients_and_edits():
    space = SPACES[1]
    editor, x = EquivariantNFN(space, (2,)), inputs(space)
    parameters = dict(editor.named_parameters())
    gradients = []
    for model in (editor, torch.compile(editor, fullgraph=True, backend="aot_eager_default_partitioner")):
        edited = model(x)
        gradients.append(torch.autograd.grad(sum(t.square().sum() for t in edited.tensors), list(parameters.values())))
    for name, eager, compiled in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@over_spaces
def test_dtypes(space):
    reference = network(space).double()(inputs(space, dtype=torch.float64))
    for dtype, tolerance in [(torch.float32, 1e-4), (torch.bfloat16, 0.1)]:
        cast = {k: v.to(dtype) for k, v in inputs(space, dtype=torch.float64).items()}
        out = network(space).to(dtype)(cast)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), reference, rtol=tolerance, atol=tolerance)


@over_spaces
def test_autocast(space):
    model, x = network(space), inputs(space)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), model(x), rtol=0.1, atol=0.1)
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_state_dict_names_are_pinned():
    """Names are public: saved models must load for as long as the major version lasts."""
    space = WeightSpace.mlp([2, 4, 4, 1], "relu")
    names = [
        "bias",
        "mix.const.weight",
        "mix.h1+1.weight",
        "mix.h2+1.weight",
        "mix.h2-1.weight",
        "mix.h2+1_h1-1.weight",
    ]
    assert list(EquivariantLinear(space, 2, 2).state_dict()) == names
    assert list(Canonicalize(space, 2).state_dict()) == [f"{kind}.{i}" for kind in ("weight", "bias") for i in range(5)]


def test_forward_is_a_function():
    space = SPACES[0]
    model, x = network(space), inputs(space)
    before = {k: v.clone() for k, v in x.items()}
    assert torch.equal(model(x), model(x))
    assert all(torch.equal(x[k], v) for k, v in before.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_what_the_cpu_gives():
    for space in SPACES:
        model, x = network(space).double(), inputs(space, dtype=torch.float64)
        expected = model(x)
        found = model.cuda()({k: v.cuda() for k, v in x.items()})
        torch.testing.assert_close(found.cpu(), expected)
        space.sample(3, generator=torch.Generator("cuda"), device="cuda").act({k: v.cuda() for k, v in x.items()})


def test_features_are_no_sequence_and_no_mapping() -> None:
    space = WeightSpace.mlp([2, 3, 1], "relu")
    features = space.pack(random_networks(space, batch=2))
    with pytest.raises(TypeError, match="not iterable"):
        list(features)
    with pytest.raises(TypeError, match="parameter name -> tensor, found Features"):
        balance(features, space)
