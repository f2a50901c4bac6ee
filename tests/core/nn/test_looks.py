"""No forward looks at values: on an accelerator each look would wait for all that was asked of it before."""

import pytest
import torch
from neuron_features import generator, random_neurons
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial import EquivariantNorm, GatedActivation, MessagePassing, MonomialNFN, TensorProduct, WeightSpace
from nfn_monomial.canonical import Balance
from nfn_monomial.models import EquivariantNFN, MessagePassingEditor, MessagePassingNFN
from nfn_monomial.nn import MessageBlock, NeuronEmbedding, NeuronPool, NeuronReadout
from nfn_monomial.testing import random_networks

LOOKS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique", "item", "bincount")
SPACES = pytest.mark.parametrize(
    "space",
    [WeightSpace.mlp([2, 4, 3, 1], "tanh"), WeightSpace.cnn([1, 3, 3], 3, ["relu", "gelu"], head=[2])],
    ids=str,
)
LAYERS = [MessagePassing, GatedActivation, EquivariantNorm, MessageBlock]


class Operators(TorchDispatchMode):
    """Stands for a device that would have to wait: the names of all operators, and of those that look at values."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))

    @property
    def looks(self):
        return [name for name in self.names if name in LOOKS or name.startswith("unique")]


def seen(function, *inputs):
    """The operators of a call, and of its backward pass."""
    function(*inputs)
    with Operators() as operators:
        out = function(*inputs)
        tensors = (out,) if isinstance(out, torch.Tensor) else out.tensors
        torch.autograd.backward([t.sum() for t in tensors if t.requires_grad])
    return operators


def test_a_look_is_seen():
    def function(x):
        return x * float(x.detach().max())

    assert seen(function, torch.ones(3, requires_grad=True)).looks


@SPACES
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(space, layer):
    x = random_neurons(space, 3).map(lambda t: t.float().requires_grad_())
    assert not seen(layer(space, 3), x).looks


@SPACES
def test_ways_in_and_out_and_products(space):
    networks = random_networks(space, 3, dtype=torch.float32, generator=generator(0))
    neurons = random_neurons(space, 3).map(lambda t: t.float().requires_grad_())
    assert not seen(NeuronEmbedding(space, 1, 3), networks).looks
    assert not seen(NeuronReadout(space, 3, 1), neurons).looks
    assert not seen(NeuronPool(space, 3), neurons).looks
    assert not seen(TensorProduct(space, 1, 2), space.pack(networks)).looks


@SPACES
@pytest.mark.parametrize("signs", [True, False])
def test_canonical_forms(space, signs):
    features = space.pack(random_networks(space, 3, dtype=torch.float32))
    with Operators() as operators:
        Balance(space, signs=signs)(features)
    assert not operators.looks
    assert signs or len(operators.names) < 2000 * (len(space.nodes) - 2)


@SPACES
@pytest.mark.parametrize("options", [{}, {"kind": "square"}, {"io": "factored"}], ids=str)
def test_the_papers_models(space, options):
    kinds = [EquivariantNFN] if "kind" not in options else []
    for kind in (MonomialNFN, *kinds):
        net = kind(space, (3, 3), **options)
        assert not seen(net, space.pack(random_networks(space, 3, dtype=torch.float32))).looks


@SPACES
@pytest.mark.parametrize("kind", [MessagePassingNFN, MessagePassingEditor])
def test_models(space, kind):
    """On networks whose scales were balanced before, once; the number of operators is bounded."""
    net = kind(space, 3, 2)
    raw = random_networks(space, 3, dtype=torch.float32, generator=generator(0))
    assert not seen(net, space.pack(raw)).looks
    networks = net.prepare(raw)
    operators = seen(net, networks)
    assert not operators.looks
    assert len(operators.names) < 4000
    with torch.no_grad(), Operators() as forward:
        net(networks)
    assert len(forward.names) < 1800


@SPACES
@pytest.mark.parametrize("kind", [MessagePassingNFN, MessagePassingEditor])
def test_networks_that_were_balanced_before_give_the_same(space, kind):
    torch.manual_seed(0)
    net, networks = kind(space, 3, 2).double(), random_networks(space, 3, generator=generator(0))
    prepared, plain = net(net.prepare(networks)), net(networks)
    if kind is MessagePassingNFN:
        torch.testing.assert_close(prepared, plain, rtol=1e-9, atol=1e-11)
    else:  # the edited network in the balanced frame, and balanced again, since an edit may unbalance
        expected, found = net.prepare(plain), net.prepare(space.pack(net.inner.unpack(prepared)))
        torch.testing.assert_close(found.tensors, expected.tensors, rtol=1e-8, atol=1e-10)
