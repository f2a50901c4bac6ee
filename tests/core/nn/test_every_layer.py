"""What every layer and model does, on any space: it commutes with the group, looks at no values, and torch runs it."""

import pytest
import torch
from every_layer import EQUIVARIANT, EXPERTS, INVARIANT, LAYERS, ON_VALUES, features_for, of_heads
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import all_spaces
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.testing import assert_equivariant, assert_invariant

seeds = st.integers(0, 10**6)
SPACES = pytest.mark.parametrize(
    "space",
    [WeightSpace.mlp([2, 4, 3, 1], "tanh"), WeightSpace.cnn([1, 3, 3], 3, ["relu", "gelu"], head=[2])],
    ids=str,
)


def built(name, space, seed=0):
    """A layer whose parameters are not as it starts with."""
    torch.manual_seed(seed)
    layer = (LAYERS | ON_VALUES)[name](space).double()
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3 * torch.randn_like(p)
    return layer


@pytest.mark.parametrize("name", EQUIVARIANT)
@given(all_spaces(), seeds)
@example(EXPERTS, 0)
@example(of_heads(Symmetry.FIXED), 0)
def test_layers_are_equivariant(name, space, seed):
    layer = built(name, space, seed)
    assert_equivariant(layer, space, inputs=features_for(layer, space, 8, seed), trials=1, seed=seed)


@pytest.mark.parametrize("name", INVARIANT)
@given(all_spaces(), seeds)
@example(EXPERTS, 0)
@example(of_heads(Symmetry.FIXED), 0)
def test_models_are_invariant(name, space, seed):
    layer = built(name, space, seed)
    x = features_for(layer, space, 4, seed)
    assume(float(layer(x).detach().std(0).max()) > 1e-4)
    assert_invariant(layer, space, inputs=x, trials=1, seed=seed)


LOOKS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique", "item", "bincount")


class Looks(TorchDispatchMode):
    """Stands for an accelerator, which would have to wait: the operators that look at values."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name in LOOKS or name.startswith("unique"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_a_look_is_seen():
    with Looks() as looks:
        float(torch.ones(3).max())
    assert looks.names


@SPACES
@pytest.mark.parametrize("name", [*LAYERS, "balance"])
def test_no_layer_looks_at_values(name, space):
    layer = built(name, space).float()
    x = features_for(layer, space, dtype=torch.float32).map(torch.Tensor.requires_grad_)
    layer(x)
    with Looks() as looks:
        tensors = pytree.tree_leaves(layer(x))
        torch.autograd.backward([t.sum() for t in tensors if t.requires_grad])
    assert not looks.names


@SPACES
@pytest.mark.parametrize("name", LAYERS | ON_VALUES)
def test_networks_are_mapped(name, space):
    layer = built(name, space)
    x = features_for(layer, space)
    before = x.map(torch.clone)
    one_by_one = torch.func.vmap(lambda f: pytree.tree_map(lambda t: t[0], layer(f.map(lambda t: t[None]))))(x)
    found, expected = map(pytree.tree_leaves, (one_by_one, layer(x)))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    assert all(map(torch.equal, x.tensors, before.tensors)), "what is given is not written to"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", LAYERS | ON_VALUES)
def test_cuda_gives_what_the_cpu_gives(name):
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    layer = built(name, space)
    x = features_for(layer, space)
    expected, found = layer(x), layer.cuda()(x.to("cuda"))
    torch.testing.assert_close([t.cpu() for t in pytree.tree_leaves(found)], pytree.tree_leaves(expected))


COMPILED = ("input norm", "block", "MonomialNFN", "statistics")  # which consist of most of the others


@pytest.mark.parametrize(
    "name", [n if n in COMPILED else pytest.param(n, marks=pytest.mark.slow) for n in LAYERS | ON_VALUES]
)
def test_layers_compile_as_one_graph(name):
    space = WeightSpace.mlp([2, 3, 1], "relu")  # short: a compiler takes time for every layer
    layer = built(name, space)
    x = features_for(layer, space)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    found, expected = map(pytree.tree_leaves, (compiled(x), layer(x)))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS | ON_VALUES)
def test_no_networks_and_networks_of_zeros(name):
    """The first have no rows of what comes out and gradients, the second have finite gradients."""
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    layer = built(name, space)
    x = features_for(layer, space)
    for of in (x[:0], x.map(torch.zeros_like)):
        of.map(torch.Tensor.requires_grad_)
        tensors = pytree.tree_leaves(layer(of))
        assert [t.shape for t in tensors] == [(len(of), *t.shape[1:]) for t in pytree.tree_leaves(layer(x))]
        torch.autograd.backward([t.sum() for t in tensors if t.requires_grad])
        assert all(t.grad is None or bool(t.grad.isfinite().all()) for t in of.tensors)
