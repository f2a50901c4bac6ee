"""Neurons in buckets: however they are arranged, layers compute the same, in as many operators as there are shapes."""

import math

import pytest
import torch
from every_layer import RAGGED, RARE, generator, over_spaces, random_neurons
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from versions_of_torch import since_2_13

from nfn_monomial import Features, WeightSpace
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN
from nfn_monomial.nn import EquivariantNorm, MessageBlock, NeuronEmbedding, NeuronPool, NeuronReadout, blocked, edges
from nfn_monomial.nn.neurons import layers
from nfn_monomial.nn.neurons.arrange import buckets_of
from nfn_monomial.nn.neurons.mixes import EdgeMessages, NeuronGate, NeuronUpdate
from nfn_monomial.testing import random_networks

ONE_BY_ONE, LARGE = 0, 2**24
ARRANGEMENTS = [(0, LARGE), (2**10, LARGE), (2**17, LARGE), (2**30, LARGE), (0, ONE_BY_ONE), (2**12, ONE_BY_ONE)]
"""Bytes of padding for which two shapes share a tensor, and bytes from which on sets of edges have one of their own."""


class Both(nn.Module):
    """Networks through every layer, -> edited ones and a vector."""

    def __init__(self, space, tied):
        super().__init__()
        self.embed = NeuronEmbedding(space, 1, 3)
        self.blocks = nn.Sequential(MessageBlock(space, 3, tied=tied), MessageBlock(space, 3, tied=tied, norm=False))
        self.norm, self.readout = EquivariantNorm(space, 3), NeuronReadout(space, 3, 2)
        self.pool = NeuronPool(space, 3, norm=True)

    def forward(self, networks):
        neurons = self.norm(self.blocks(self.embed(networks, in_buckets=True)))
        return [*self.readout(neurons).tensors, self.pool(neurons)]


@over_spaces
def test_every_arrangement_computes_the_same(space, seed):
    """Outputs and all gradients: shapes as they are, joined with padding, and sets of edges one by one."""
    torch.manual_seed(seed)
    model = Both(space, tied=seed % 2 == 1).double()
    networks = {n: t.requires_grad_() for n, t in random_networks(space, 3, generator=generator(seed)).items()}
    everything = [*networks.values(), *model.parameters()]
    first = None
    for padding, large in ARRANGEMENTS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "PADDING", padding)
            patch.setattr(layers, "LARGE", large)
            outputs = model(networks)
        loss = sum((t * torch.linspace(1, 2, t.numel()).view(t.shape)).sin().sum() for t in outputs)
        found = [*outputs, *torch.autograd.grad(loss, everything)]
        first = found if first is None else first
        for a, b in zip(found, first, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * max(1.0, float(b.detach().abs().max())))


@pytest.mark.parametrize(("padding", "large"), ARRANGEMENTS)
@over_spaces
def test_packing_is_undone_and_padding_stays_zero(padding, large, space, seed):
    sizes = [node.size or 1 for node in space.nodes.values()]
    buckets = buckets_of(space, 2, "cpu", padding, max(1, large), *sizes)
    x = random_neurons(space, 2, 3, seed)
    packed = buckets.pack(x)
    assert all(map(torch.equal, buckets.unpack(packed).tensors, x.tensors))
    if large == ONE_BY_ONE:
        assert all(len(bucket.sets) == 1 for bucket in buckets.edges)
    torch.manual_seed(seed)
    out = MessageBlock(space, 2).double().on(packed)
    for x, again in zip(out.edges, buckets.pack(buckets.unpack(out)).edges, strict=True):
        assert torch.equal(x, again), "packing pads by zeros"


def test_shapes_are_joined_as_far_as_padding_may_go():
    sizes, counts = [node.size for node in RAGGED.nodes.values()], []
    for padding in (0, 8, 20, 2**30):
        buckets = buckets_of(RAGGED, 2, "cpu", padding, 2**62, *sizes)
        entries = sum(math.prod(shape) for shape in buckets.shapes[: len(buckets.layout.edges)])
        padded = sum(bucket.entries.numel() for bucket in buckets.edges)
        counts.append(len(buckets.edges))
        assert entries <= padded <= entries + padding * (len(buckets.layout.edges) - counts[-1])
        assert (padding == 0) == all(bucket.mask is None for bucket in buckets.edges)
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1
    equal = WeightSpace.mlp([2, 5, 5, 5, 2], "relu")
    assert len(buckets_of(equal, 2, "cpu", 0, 2**62, 2, 5, 5, 5, 2).edges) == 2


@over_spaces
def test_networks_of_a_batch_do_not_meet(space, seed):
    """Each gives what it gives alone, even if its neighbours are not finite."""
    torch.manual_seed(seed)
    model = Both(space, tied=False).double()
    networks = random_networks(space, 3, generator=generator(seed))
    together = model(networks)
    finite = torch.tensor([True, False, True])
    spoiled = model({n: torch.where(finite.view(3, *[1] * (t.ndim - 1)), t, torch.nan) for n, t in networks.items()})
    for i in (0, 2):
        alone = model({name: t[i : i + 1] for name, t in networks.items()})
        for a, b, c in zip(alone, together, spoiled, strict=True):
            torch.testing.assert_close(a[0], b[i], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(c[i], b[i], rtol=1e-12, atol=1e-12)
            assert bool(a.isfinite().all())


def test_fields_of_different_widths_are_refused():
    """Features that nobody packed: an index would take numbers of other neurons without a word."""
    space = WeightSpace.mlp([2, 5, 5, 1], "tanh")
    embed, features = NeuronEmbedding(space, 1, 3).double(), space.pack(random_networks(space, 2))
    first, *others = features.tensors
    wider = Features(features.layout, (torch.cat([first, first], 1), *others))
    with pytest.raises(ValueError, match="the space expects"):
        embed(wider)


@pytest.mark.parametrize("kind", [MessagePassingNFN, MessagePassingEditor])
@pytest.mark.parametrize("tied", [False, True])
def test_state_dicts_know_no_sizes_and_no_arrangement(kind, tied, monkeypatch):
    """A model of narrow networks runs on wide ones, in small batches and large."""
    narrow, wide = (WeightSpace.mlp([2, a, b, a, 1], ["relu", "tanh", "relu"]) for a, b in ((4, 3), (9, 16)))
    torch.manual_seed(0)
    model, other = (kind(space, 3, 2, tied=tied).double() for space in (narrow, wide))
    shapes = {name: t.shape for name, t in model.state_dict().items()}
    assert shapes == {name: t.shape for name, t in other.state_dict().items()}
    other.load_state_dict(model.state_dict())
    x = random_networks(wide, 5, generator=generator())
    for padding, large in ARRANGEMENTS:
        monkeypatch.setattr(layers, "PADDING", padding)
        monkeypatch.setattr(layers, "LARGE", large)
        found, expected = map(pytree.tree_leaves, (model(x), other(x)))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert {name: t.shape for name, t in model.state_dict().items()} == shapes


def test_few_sizes_of_batches_need_an_arrangement_of_their_own():
    layer = MessageBlock(RAGGED, 16)
    sizes = {name: node.size for name, node in RAGGED.nodes.items()}
    arrangements = {layer.arrangement(sizes, torch.zeros(count, 1)) for count in range(1, 5000)}
    assert len(arrangements) <= 15


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad], ids=lambda mode: mode.__name__)
def test_a_model_that_has_predicted_is_trained(mode):
    space = WeightSpace.mlp([2, 3, 1], "tanh")  # no arrangements are kept yet
    model, networks = MessagePassingNFN(space, 2, 1, hidden=4).double(), random_networks(space, 2)
    with mode():
        expected = model(networks)
    found = model(networks)
    found.sum().backward()
    assert torch.equal(found, expected)


@since_2_13
def test_a_compiler_takes_batches_of_any_size():
    layer = MessageBlock(RAGGED, 2).double()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for count in (3, 5, 7):
        x = random_neurons(RAGGED, 2, count)
        torch.testing.assert_close(compiled(x).tensors, layer(x).tensors, rtol=1e-10, atol=1e-10)


VIEWS = {
    "view", "_unsafe_view", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "split", "split_with_sizes",
    "slice", "select", "unbind", "detach", "alias", "as_strided", "unfold", "lift_fresh",
}  # fmt: skip


class Operators(TorchDispatchMode):
    """Counts operators, views left out."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name.removeprefix("aten::").rstrip("_") not in VIEWS
        return func(*args, **(kwargs or {}))


def operators(space):
    """How many a step takes, of 3 blocks of 16 channels and batches of 8 networks."""
    model = MessagePassingNFN(space, 16, 3)
    networks = model.prepare(random_networks(space, 8, dtype=torch.float32, generator=generator()))

    def step():
        model.zero_grad(set_to_none=True)
        model(networks).square().mean().backward()

    step()  # makes what is made once
    with Operators() as counted:
        step()
    return counted.count


def test_operators_do_not_grow_with_depth(monkeypatch):
    """But for the first and last layer, which may be cheap enough to pad; and for what is made again in backward."""
    monkeypatch.setattr(blocked, "BLOCK", 2**40)
    monkeypatch.setattr(edges, "KEPT", 2**40)
    counts = [operators(WeightSpace.mlp([2, *[8] * depth, 1], "tanh")) for depth in (4, 12, 24)]
    assert counts[0] >= counts[1] == counts[2]


@pytest.mark.parametrize(
    "space",
    [
        WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10]),
        WeightSpace.mlp([2, 32, 32, 1], "sin"),
        WeightSpace.mlp([2, *[32] * 12, 1], "relu"),
    ],
    ids=["zoo", "siren", "13 layers"],
)
def test_a_step_takes_at_most_a_thousand_operators(monkeypatch, space):
    monkeypatch.setattr(blocked, "BLOCK", 2**40)  # as on a GPU; a CPU takes blocks of what does not fit into its cache
    assert operators(space) <= 1000


@pytest.mark.parametrize("space", RARE, ids=str)
def test_slices_start_as_linear_layers_of_their_inputs_do(space):
    torch.manual_seed(0)
    for last in (False, True):
        block = MessageBlock(space, 32, last=last)
        for module in block.modules():
            if isinstance(module, EdgeMessages | NeuronUpdate):
                inputs = dict.fromkeys(dict(module.named_parameters()), 32)
                if isinstance(module, NeuronUpdate):
                    inputs |= dict.fromkeys(("inv", "bias"), module.inv.shape[1])
            elif isinstance(module, NeuronGate):
                charged = module.out_bias.shape[1] - 32
                assert bool((module.out_bias[:, :charged] == 1).all())
                inputs = dict.fromkeys(("hidden", "hidden_bias"), module.hidden.shape[1]) | {"out": 64}
                assert float(module.out_bias.detach()[:, charged:].abs().max()) <= 64**-0.5
            else:
                continue
            for name, fan_in in inputs.items():
                for one in getattr(module, name):
                    drawn = one.detach() * fan_in**0.5
                    assert float(drawn.abs().max()) <= 1 + 1e-6, name
                    assert drawn.numel() < 1000 or abs(float(drawn.std()) * 3**0.5 - 1) < 0.1, name
