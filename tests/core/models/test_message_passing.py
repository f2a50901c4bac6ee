"""The message-passing networks: invariant and equivariant under everything, and the torch modules they should be."""

import pytest
import torch
from torch import nn

from nfn_monomial import Axis, MonomialNFN, ProbeFeatures, Symmetry, WeightSpace
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN
from nfn_monomial.space import Node, Sum
from nfn_monomial.testing import assert_invariant, random_networks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def networks_of(space, batch=4, dtype=torch.float64, seed=0):
    return random_networks(space, batch, dtype=dtype, generator=generator(seed))


def test_an_edit_changes_every_parameter_of_any_network():
    torch.manual_seed(0)
    heads = {"heads": Node((Symmetry.PERMUTATION,), 2), "q": Node((Symmetry.SIGN, Symmetry.SIGN), 2, "heads")}
    space = WeightSpace(
        {"x": (Symmetry.FIXED, 2), **heads},
        {
            "query": (Sum((Axis("q", (1, 0)), Axis("q", (0, 1)))), Axis("x", -1)),
            "gain": (Axis("q", (1, 1)),),
            "positions": (Axis("x", 0), 3),
            "slope": (1,),
        },
    )
    model, x = MessagePassingEditor(space, 4, 2).double(), networks_of(space)
    edited = space.unpack(model(x))
    for name in x:
        change = (edited[name] - x[name]).detach().abs()
        assert bool((change != 0).all())
        assert change.max() < 0.5 * x[name].abs().max(), "a small change"


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_statistics_and_probes_join(activation):
    torch.manual_seed(0)
    act = nn.ReLU() if activation == "relu" else nn.Tanh()
    template = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), act, nn.Conv2d(4, 4, 3, padding=1), act,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    space = WeightSpace.cnn([1, 4, 4], 3, activation, head=[3])
    probes = ProbeFeatures(template, 5, input_shape=(1, 6, 6), space=space).double()
    model = MessagePassingNFN(space, 4, 2, hidden=8, append_stats=True, probes=probes).double()
    x = networks_of(space)
    assert_invariant(model, space, inputs=x, rtol=1e-8)
    model(x).sum().backward()
    assert all(p.grad is not None for p in probes.parameters())
    plain = MonomialNFN(space, (4,), hidden=8, append_stats=True).double()
    assert_invariant(plain, space, inputs=x, rtol=1e-8)
    assert plain.head[0].in_features > MonomialNFN(space, (4,), hidden=8).head[0].in_features


def test_without_balancing_scales_matter_and_balanced_networks_give_the_same():
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    model = MessagePassingNFN(space, 4, 2, hidden=8).double()
    bare = MessagePassingNFN(space, 4, 2, hidden=8, balance=False).double()
    bare.load_state_dict(model.state_dict())
    x = networks_of(space)
    torch.testing.assert_close(bare(model.balance(x)), model(x))
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(bare, space, inputs=x)


@pytest.mark.parametrize("model", [MessagePassingNFN, MessagePassingEditor])
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_half_precision(model, size):
    torch.manual_seed(0)
    space = WeightSpace.cnn([1, 8, 8], 3, ["relu", "tanh"], head=[4])
    net = model(space, 4, 2)
    x = {name: t * size for name, t in networks_of(space, 3, torch.float32).items()}
    with torch.no_grad():
        expected, found = net(x), net.half()({name: t.half() for name, t in x.items()})
    pairs = zip(*(getattr(out, "tensors", (out,)) for out in (found, expected)), strict=True)
    for a, b in pairs:
        assert a.dtype == torch.float16
        assert float((a.float() - b).abs().max()) < 0.05 * float(b.abs().max())


@pytest.mark.parametrize("kind", [MessagePassingNFN, MessagePassingEditor])
def test_networks_that_were_balanced_before_give_the_same(kind):
    torch.manual_seed(0)
    space = WeightSpace.cnn([1, 3, 3], 3, ["relu", "gelu"], head=[2])
    net, networks = kind(space, 3, 2).double(), networks_of(space, 3)
    prepared, plain = net(net.prepare(networks)), net(networks)
    if kind is MessagePassingNFN:
        torch.testing.assert_close(prepared, plain, rtol=1e-9, atol=1e-11)
    else:  # the edited network in the balanced frame, and balanced again, since an edit may unbalance
        expected, found = net.prepare(plain), net.prepare(space.pack(net.inner.unpack(prepared)))
        torch.testing.assert_close(found.tensors, expected.tensors, rtol=1e-8, atol=1e-10)
