"""Wrong calls of every public name of the core: an error of ours, or an answer that means something."""

from __future__ import annotations

import copy

import pytest
import torch
from nfn_networks import spec_of
from torch import nn
from wrong_calls import Call, faults, uncovered

import nfn_monomial
from nfn_monomial import (
    Axis,
    Canonicalize,
    EquivariantLinear,
    EquivariantNFN,
    EquivariantNorm,
    Features,
    GatedActivation,
    GroupElement,
    InvariantPool,
    InvariantStatistics,
    MessagePassing,
    MonomialError,
    MonomialMatrix,
    MonomialNFN,
    PointwiseActivation,
    ProbeFeatures,
    Symmetry,
    TensorProduct,
    WeightSpace,
    align,
    balance,
    compare,
    fingerprint,
    fold_batchnorm,
    symmetry,
    symmetry_of,
)
from nfn_monomial.alignment import align_all, barrier, interpolate, loss_along, mean_measures, mean_of, repair
from nfn_monomial.basis import BilinearTerm, bilinear_terms, count_bilinear_terms, count_terms
from nfn_monomial.canonical import Balance, absorb_omega, canonical_phase, shift_phase
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN, equivariant_stack, recompute_blocks
from nfn_monomial.nn import (
    Augment,
    InputNorm,
    MessageBlock,
    NeuronEmbedding,
    NeuronPool,
    NeuronReadout,
    neuron_layout,
)
from nfn_monomial.space import Layout, Node, Specification, Sum, field_name
from nfn_monomial.space.trace import OPERATORS
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_element, random_networks

D = torch.float64
RELU, SINE = WeightSpace.mlp([2, 3, 2], "relu"), WeightSpace.mlp([2, 3, 1], "sin")
NETS = random_networks(RELU, 2, generator=torch.Generator().manual_seed(0))
SINES = random_networks(SINE, 2, generator=torch.Generator().manual_seed(0))
PACKED = RELU.pack(NETS)
NEURONS = NeuronEmbedding(RELU, 1, 2).double()(NETS)
ELEMENT = RELU.sample(2, generator=torch.Generator().manual_seed(0))
MATRIX = MonomialMatrix.random(3, "relu", generator=torch.Generator().manual_seed(0))
NET = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
NORMED = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
X = torch.ones(1, 2, dtype=D)


def of(method, **options):
    """A method of a made thing, as a function of keyword arguments."""
    return lambda **given: method(*given.values(), **options)


def kept(register):
    """A function that enters something into the tables of activations or operators, which are then as they were."""

    def call(**given):
        tables = (symmetry._BY_NAME, symmetry._BY_OBJECT, OPERATORS)
        before = [dict(table) for table in tables]
        try:
            register(**given)
        finally:
            for table, entries in zip(tables, before, strict=True):
                table.clear()
                table.update(entries)

    return call


def sent(layer):
    """A layer's forward."""
    return lambda networks: layer.double()(networks)


LAYERS = {  # built with channels that fit NETS, then sent NETS packed, or neuron features
    "EquivariantLinear": (EquivariantLinear, {"space": RELU, "in_channels": 1, "out_channels": 2}, PACKED),
    "Canonicalize": (Canonicalize, {"space": RELU, "channels": 1, "kind": "norm", "learnable": True}, PACKED),
    "InputNorm": (InputNorm, {"space": RELU, "channels": 1}, PACKED),
    "InvariantStatistics": (InvariantStatistics, {"space": RELU, "channels": 1}, PACKED),
    "Balance": (Balance, {"space": RELU, "scales": True, "signs": True}, PACKED),
    "PointwiseActivation": (PointwiseActivation, {"space": RELU, "fn": "relu", "layout": None}, PACKED),
    "EquivariantNorm": (EquivariantNorm, {"space": RELU, "channels": 2, "edges": True}, NEURONS),
    "MessagePassing": (MessagePassing, {"space": RELU, "channels": 2, "tied": True}, NEURONS),
    "GatedActivation": (GatedActivation, {"space": RELU, "channels": 2, "tied": True}, NEURONS),
    "MessageBlock": (MessageBlock, {"space": RELU, "channels": 2, "tied": True, "norm": True, "edges": True}, NEURONS),
    "NeuronPool": (NeuronPool, {"space": RELU, "channels": 2}, NEURONS),
    "NeuronReadout": (NeuronReadout, {"space": RELU, "channels": 2, "out_channels": 1}, NEURONS),
    "NeuronEmbedding": (NeuronEmbedding, {"space": RELU, "in_channels": 1, "channels": 2}, PACKED),
    "EquivariantNFN": (EquivariantNFN, {"space": RELU, "channels": (2,), "in_channels": 1, "init_scale": 0.1}, PACKED),
    "MonomialNFN": (
        MonomialNFN,
        {"space": RELU, "channels": (2,), "hidden": 4, "out_features": 1, "in_channels": 1, "activation": "relu",
         "kind": "norm", "reduce": "mean", "io": "full", "dropout": 0.0, "append_stats": False},
        PACKED,
    ),
    "MessagePassingNFN": (
        MessagePassingNFN,
        {"space": RELU, "channels": 2, "layers": 1, "hidden": 4, "out_features": 1, "in_channels": 1, "tied": False,
         "norm": True, "balance": True, "append_stats": False, "probes": None, "dropout": 0.0},
        PACKED,
    ),
    "MessagePassingEditor": (
        MessagePassingEditor,
        {"space": RELU, "channels": 2, "layers": 1, "in_channels": 1, "tied": False, "init_scale": 0.1},
        PACKED,
    ),
}  # fmt: skip
UNCHARGED = RELU.uncharged().pack(NETS)
TEMPLATE_NETS = {name: p.detach().expand(2, 1, *p.shape).clone() for name, p in NET.named_parameters()}
TYPES = {"first_types": [(Axis("h1", 1),)], "second_types": [(Axis("h1", -1),)], "out_types": [(Axis("h1", 0),)]}
H = (Axis("h1", 1),)
NODES = {"h1": Node((Symmetry.SCALE,), 3)}
ONE, OTHER_ONE = ({name: x[i, 0] for name, x in NETS.items()} for i in range(2))
PLAIN, NET_SPACE = {name: p.detach() for name, p in NET.named_parameters()}, WeightSpace.from_module(NET, X)
BATCHES = [(X, torch.zeros(1, dtype=torch.int64))]
CALLS = {
    **{name: Call(kind, given) for name, (kind, given, _) in LAYERS.items()},
    **{f"{name}.forward": Call(sent(kind(**given)), {"networks": x}) for name, (kind, given, x) in LAYERS.items()},
    **{
        f"{name}.forward, named": Call(sent(kind(**given)), {"networks": NETS})
        for name, (kind, given, x) in LAYERS.items()
        if x is PACKED and name not in ("EquivariantLinear", "Canonicalize", "PointwiseActivation")
    },
    "recompute_blocks": Call(recompute_blocks, {"model": MonomialNFN(RELU, (2,)), "recompute": True}),
    "align": Call(align, {"space": RELU, "a": ONE, "b": OTHER_ONE, "symmetry": None, "seed": 0}),
    "align_all": Call(align_all, {"space": RELU, "networks": [ONE, OTHER_ONE], "symmetry": None, "seed": 0}),
    "compare": Call(compare, {"space": NET_SPACE, "a": PLAIN, "b": PLAIN, "module": NET, "inputs": X, "seed": 0}),
    "fingerprint": Call(fingerprint, {"space": RELU, "network": ONE}),
    "mean_of": Call(mean_of, {"networks": [ONE, OTHER_ONE], "weights": [0.5, 0.5]}),
    "interpolate": Call(interpolate, {"a": ONE, "b": OTHER_ONE, "t": 0.5}),
    "barrier": Call(barrier, {"losses": [1.0, 4.0, 3.0]}),
    "loss_along": Call(
        loss_along,
        {"module": NET, "a": PLAIN, "b": PLAIN, "batches": BATCHES, "points": 3, "loss": nn.functional.cross_entropy},
        also=(TypeError,),
    ),
    "mean_measures": Call(
        mean_measures,
        {"module": NET, "networks": [PLAIN], "batches": BATCHES, "measure": nn.functional.cross_entropy},
        also=(TypeError,),
    ),
    "repair": Call(
        repair, {"module": NET, "merged": PLAIN, "endpoints": [PLAIN, PLAIN], "inputs": X, "weights": [0.5, 0.5]}
    ),
    "Axis": Call(
        lambda **a: WeightSpace({"h": Node((Symmetry.SCALE,), 3)}, {"w": (Axis(**a),)}), {"node": "h", "charge": 1}
    ),
    "Node": Call(
        lambda **a: WeightSpace({"p": Node((Symmetry.SCALE,), 2), "h": Node(**a)}, {"w": (Axis("h"),)}),
        {"gauges": (Symmetry.SCALE,), "size": 3, "parent": "p"},
    ),
    "Sum": Call(lambda parts: WeightSpace(NODES, {"w": (Sum(parts),)}), {"parts": (Axis("h1"), 2)}),
    "Features": Call(Features, {"layout": PACKED.layout, "tensors": PACKED.tensors}),
    "Features []": Call(of(PACKED.__getitem__), {"index": 0}),
    "Features +": Call(lambda right: PACKED + right, {"right": PACKED}, also=(TypeError,)),
    "Features *": Call(
        lambda right: PACKED * right,
        {"right": 2.0},
        also=(TypeError,),
    ),
    "Features * (right)": Call(
        lambda left: left * PACKED,
        {"left": 2.0},
        also=(TypeError,),
    ),
    "Layout": Call(Layout, {"types": (H,), "multiplicities": (1,), "acting": ((Symmetry.SCALE,),)}),
    "GroupElement": Call(GroupElement, {"space": RELU, "matrices": {"h1": MATRIX}}),
    "GroupElement @": Call(lambda right: ELEMENT @ right, {"right": ELEMENT}, also=(TypeError,)),
    "GroupElement.act": Call(
        of(ELEMENT.act),
        {"tensors": NETS},
    ),
    "GroupElement.act of features": Call(of(ELEMENT.act), {"tensors": PACKED}),
    "MonomialMatrix": Call(
        MonomialMatrix,
        {"scale": torch.ones(3, dtype=D), "permutation": torch.arange(3), "permutes": True},
    ),
    "MonomialMatrix.identity": Call(MonomialMatrix.identity, {"n": 3, "device": "cpu"}),
    "MonomialMatrix.diagonal": Call(MonomialMatrix.diagonal, {"scale": torch.ones(3, dtype=D)}),
    "MonomialMatrix.random": Call(
        MonomialMatrix.random,
        {
            "n": 4,
            "symmetry": "relu",
            "scale_range": (1.0, 2.0),
            "blocks": 2,
            "batch": 2,
            "generator": None,
            "dtype": D,
            "device": "cpu",
        },
    ),
    "MonomialMatrix @": Call(lambda right: MATRIX @ right, {"right": MATRIX}, also=(TypeError,)),
    "MonomialMatrix.act": Call(of(MATRIX.act), {"x": torch.ones(2, 3, dtype=D), "dim": 1, "charge": 1}),
    "Symmetry": Call(Symmetry, {"value": 5}, also=(ValueError,)),
    "Symmetry.coerce": Call(Symmetry.coerce, {"value": "relu"}),
    "Symmetry &": Call(lambda right: Symmetry.SCALE & right, {"right": Symmetry.SIGN}, also=(TypeError,)),
    "Symmetry <=": Call(lambda right: right >= Symmetry.SCALE, {"right": Symmetry.SIGN}, also=(TypeError,)),
    "symmetry_of": Call(symmetry_of, {"activation": "relu"}),
    "register_activation": Call(kept(nfn_monomial.register_activation), {"activation": "made_up", "symmetry": "sign"}),
    "register_operator": Call(kept(nfn_monomial.register_operator), {"target": "made.up", "rule": len}),
    "fold_batchnorm": Call(
        fold_batchnorm, {"module": NORMED, "example_inputs": torch.zeros(1, 1, 8, 8), "kwargs": None}
    ),
    "InvariantPool": Call(InvariantPool, {"space": RELU, "channels": 1, "reduce": "mean"}),
    "InvariantPool.forward": Call(sent(InvariantPool(RELU, 1)), {"networks": UNCHARGED}),
    "InputNorm.fit": Call(of(InputNorm(RELU).fit), {"networks": NETS}),
    "Augment": Call(
        Augment,
        {"space": SINE, "scale_range": (1.0, 2.0), "noise": 0.1, "phases": 1, "layers": ("h1",)},
    ),
    "Augment.forward": Call(sent(Augment(SINE, noise=0.1, phases=2)), {"networks": SINES}),
    "TensorProduct": Call(
        TensorProduct,
        {
            "space": RELU,
            "in_channels": 1,
            "out_channels": 1,
            "second_channels": 1,
            **TYPES,
            "terms": "standard",
            "mix": "full",
            "rank": None,
            "reduce": "mean",
        },
        also=(TypeError,),
    ),
    "TensorProduct.forward": Call(lambda x, y: TensorProduct(RELU, 1, 1).double()(x, y), {"x": PACKED, "y": PACKED}),
    "ProbeFeatures": Call(
        ProbeFeatures,
        {
            "template": NET,
            "probes": torch.randn(3, 2, dtype=D),
            "input_shape": None,
            "space": None,
            "generator_rank": 1,
            "chunk_size": 1,
        },
    ),
    "ProbeFeatures.forward": Call(
        of(ProbeFeatures(NET, 3)), {"tensors": TEMPLATE_NETS, "inputs": torch.ones(3, 2, dtype=D)}
    ),
    "Probed": Call(ProbeFeatures(NET, 3), {"tensors": TEMPLATE_NETS}),
    "balance": Call(balance, {"tensors": NETS, "space": RELU, "scales": True, "signs": True}),
    "absorb_omega": Call(absorb_omega, {"tensors": SINES, "space": SINE, "omega_0": 30.0, "layers": ("h1",)}),
    "canonical_phase": Call(canonical_phase, {"tensors": SINES, "space": SINE, "layers": ("h1",)}),
    "shift_phase": Call(
        shift_phase, {"tensors": SINES, "space": SINE, "shifts": {"h1": torch.ones(3)}, "layers": ("h1",)}
    ),
    "equivariant_stack": Call(
        equivariant_stack, {"space": RELU, "channels": (1, 2, 2), "activation": "auto", "io": "full"}
    ),
    "neuron_layout": Call(neuron_layout, {"space": RELU}),
    "WeightSpace": Call(WeightSpace, {"nodes": NODES, "parameters": {"w": H}, "label": "x"}),
    "Specification": Call(Specification, {"nodes": NODES, "parameters": {"w": H}}),
    "WeightSpace.mlp": Call(
        WeightSpace.mlp, {"sizes": [2, 3, 1], "symmetry": "relu", "bias": True, "io_symmetry": "fixed"}
    ),
    "WeightSpace.cnn": Call(
        WeightSpace.cnn,
        {
            "channels": [1, 2, 3],
            "kernel_sizes": 3,
            "symmetry": "relu",
            "head": [2],
            "ndim": 2,
            "positions": 4,
            "bias": True,
            "io_symmetry": "fixed",
        },
    ),
    "WeightSpace.sequential": Call(
        WeightSpace.sequential,
        {
            "sizes": [2, 3, 1],
            "kernels": [(), ()],
            "symmetry": "relu",
            "bias": True,
            "io_symmetry": "fixed",
            "positions": {1: 1},
            "names": [("a", "b"), ("c", None)],
        },
    ),
    "WeightSpace.from_network_spec": Call(
        WeightSpace.from_network_spec, {"network_spec": spec_of(RELU), "symmetry": "relu", "io_symmetry": "fixed"}
    ),
    "WeightSpace.from_module": Call(WeightSpace.from_module, {"module": NET, "example_inputs": X, "kwargs": {}}),
    "WeightSpace.restricted": Call(RELU.restricted, {"symmetry": "permutation"}),
    "WeightSpace.fixed": Call(of(RELU.fixed), {"node": "h1"}),
    "WeightSpace.layout_of": Call(RELU.layout_of, {"types": [H], "fold": True}),
    "WeightSpace.pack": Call(RELU.pack, {"tensors": NETS, "check_finite": True}),
    "WeightSpace.unpack": Call(RELU.unpack, {"features": PACKED}),
    "WeightSpace.node_sizes": Call(RELU.node_sizes, {"features": PACKED}),
    "WeightSpace.validate": Call(RELU.validate, {"tensors": NETS}),
    "WeightSpace.sample": Call(
        RELU.sample, {"batch": 2, "scale_range": (1.0, 2.0), "generator": None, "device": "cpu", "sizes": {"h1": 4}}
    ),
    "field_name": Call(field_name, {"field_type": H}),
    "BilinearTerm": Call(
        lambda term: TensorProduct(RELU, 1, 1, **TYPES, terms=[term]),
        {"term": BilinearTerm(H, (Axis("h1", -1),), (Axis("h1", 0),), "a,a->a")},
    ),
    "bilinear_terms": Call(bilinear_terms, {"first": H, "second": H, "target": H, "nodes": NODES}),
    "count_bilinear_terms": Call(
        count_bilinear_terms, {"first": {H: 1}, "second": {H: 1}, "target": {H: 1}, "nodes": NODES}
    ),
    "count_terms": Call(count_terms, {"sources": {H: 1}, "targets": {H: 1}, "nodes": NODES}),
    "random_networks": Call(
        random_networks, {"space": RELU, "batch": 2, "channels": 1, "sizes": None, "dtype": D, "generator": None}
    ),
    "random_element": Call(random_element, {"space": RELU, "batch": 2, "sizes": None, "generator": None}),
    "assert_equivariant": Call(
        assert_equivariant,
        {
            "layer": EquivariantLinear(RELU, 1, 1).double(),
            "space": RELU,
            "inputs": PACKED,
            "out_space": None,
            "channels": None,
            "batch": 2,
            "trials": 1,
            "rtol": 1e-6,
            "seed": 0,
        },
        also=(AssertionError, TypeError),
    ),
    "assert_invariant": Call(
        assert_invariant,
        {
            "fn": InvariantStatistics(RELU),
            "space": RELU,
            "inputs": NETS,
            "channels": None,
            "batch": 2,
            "trials": 1,
            "rtol": 1e-6,
            "seed": 0,
        },
        also=(AssertionError, TypeError),
    ),
}
NUMBERS = "True, 0, -1, 2**40, 4.5, NaN, inf, -inf, complex, scalar"
TAKES = {  # call -> argument -> what means something there
    "align": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "align_all": {"seed": "-1, 2**40"},
    "compare": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "fingerprint": {"network": "[more]"},
    "mean_of": {"weights": "list of 4.5"},
    "interpolate": {"t": "0"},
    "barrier": {"losses": "list of 4.5, tensor, bool tensor"},
    "repair": {"merged": "dict, [more]", "weights": "list of 4.5"},
    "EquivariantNFN": {"channels": "list, tuple", "init_scale": "0, -1, 2**40, 4.5"},
    "MonomialNFN": {"dropout": "0"},
    "MessagePassingNFN": {"dropout": "0"},
    "MessagePassingEditor": {"init_scale": "0, -1, 2**40, 4.5"},
    "NeuronEmbedding.forward, named": {"networks": "[with NaN], [infinite]"},  # values are not looked at in a model
    "Axis": {"charge": "0, -1, 2**40"},
    "Node": {"size": "None", "parent": "None"},
    "Features []": {"index": "-1"},
    "Features *": {"right": NUMBERS},
    "Features * (right)": {"left": NUMBERS},
    "GroupElement": {"matrices": "dict"},
    "GroupElement.act": {"tensors": "dict, [other dtype], [more channels], [with NaN], [infinite], [more]"},
    "GroupElement.act of features": {"tensors": "dict"},  # of tensors, none
    "Symmetry": {"value": "True, 0"},
    "register_operator": {"rule": "class"},
    "TensorProduct.forward": {"y": "None"},
    "MonomialMatrix": {"scale": "tensor"},
    "MonomialMatrix.diagonal": {"scale": "tensor, whole, meta"},
    "MonomialMatrix.act": {"x": "complex tensor, NaN tensor", "dim": "-1", "charge": "0, -1, tuple, 2**40"},
    "register_activation": {"activation": "text, no text, class"},
    "fold_batchnorm": {"kwargs": "dict"},
    "Augment": {"noise": "0, 2**40, 4.5", "phases": "0", "layers": "list, tuple"},
    "ProbeFeatures": {"input_shape": "list, tuple"},  # not looked at where probes are given
    "ProbeFeatures.forward": {"inputs": "None"},
    "absorb_omega": {"tensors": "[with NaN], [infinite]", "omega_0": "-1, 2**40, 4.5", "layers": "list, tuple"},
    "canonical_phase": {"layers": "list, tuple"},
    "shift_phase": {"shifts": "dict, [tensor], [scalar]"},
    "WeightSpace": {"nodes": "[more]", "parameters": "[list], [tuple], [more]", "label": "text, no text"},
    "Specification": {"nodes": "[more]", "parameters": "[list], [tuple], [more]"},
    "WeightSpace.cnn": {"head": "list, tuple"},
    "WeightSpace.sequential": {"positions": "dict", "names": "list, tuple"},
    "WeightSpace.from_module": {"kwargs": "dict"},
    "WeightSpace.sample": {"sizes": "dict"},
    "field_name": {"field_type": "tuple"},
    "bilinear_terms": {"first": "tuple", "second": "tuple", "target": "tuple", "nodes": "[more]"},
    "count_bilinear_terms": {"first": "dict", "second": "dict", "target": "dict", "nodes": "[more]"},
    "count_terms": {"sources": "dict", "targets": "dict", "nodes": "[more]"},
    "random_networks": {"sizes": "dict"},
    "random_element": {"sizes": "dict"},
    "assert_equivariant": {"rtol": "2**40, 4.5", "seed": "-1, 2**40"},
    "assert_invariant": {"rtol": "2**40, 4.5", "seed": "-1, 2**40"},
}
MODULES = (
    nfn_monomial,
    nfn_monomial.alignment,
    nfn_monomial.nn,
    nfn_monomial.models,
    nfn_monomial.canonical,
    nfn_monomial.read,
    nfn_monomial.basis,
    nfn_monomial.space,
)


# Records that are answers, and no arguments:
RESULTS = ("Alignment", "CommonFrame", "Comparison", "End", "LayerDistance", "Link", "Piece")


def test_wrong_calls_are_errors_of_ours_or_mean_something():
    count, found = faults(CALLS, TAKES)
    assert not found, "\n".join(found)
    assert count > 10_000


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_called_wrongly(module):
    assert set(uncovered(module, CALLS)) <= set(RESULTS)


OTHER = WeightSpace({"x": Node((Symmetry.FIXED,), 2), "h1": NODES["h1"]}, {"w": (Axis("h1"), Axis("x", -1))})
LINEAR = EquivariantLinear(RELU, 1, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MATRIX.act(torch.ones(2, 3, dtype=torch.int64), 1), "torch.int64 would be rounded; convert"),
        (lambda: MATRIX.act(torch.ones(2, 3), 5), r"dim 5 of a tensor of shape \(2, 3\)"),
        (lambda: WeightSpace.mlp([2, 4.5, 1], "relu"), r"sizes\[1\] must be a whole number, found 4.5"),
        (lambda: WeightSpace.cnn([1, 2], 3, "relu", ndim=7), "ndim must be at most 3, found 7"),
        (lambda: RELU.sample(sizes={"h2": 4}), "sizes= has h2; nodes of"),
        (lambda: OTHER.sample(2).act(PACKED), "cannot act on features of another space"),
        (lambda: RELU.sample(2).act(SINE.pack(SINES)), "cannot act on features of another space"),
        (lambda: ProbeFeatures(NET, torch.full((2, 2), torch.nan)), "probes hold NaN"),
        (lambda: ProbeFeatures(NET, 2)({n: x * torch.nan for n, x in TEMPLATE_NETS.items()}), "0.weight holds 12 NaN"),
        (lambda: RELU.pack({**NETS, "bias.0": None}), "bias.0 must be a dense tensor, found None"),
        (lambda: LINEAR(NETS), r"Features are expected, found dict: space.pack\(tensors\)"),
        (lambda: LINEAR(PACKED), "the networks are torch.float64, the parameters of the layer torch.float32"),
        (
            lambda: copy.deepcopy(LINEAR).to("meta")(PACKED.map(torch.Tensor.float)),
            "the networks are on cpu, the parameters",
        ),
        (lambda: MonomialMatrix.random(6, "relu", blocks=0), "blocks must be at least 1, found 0"),
        (lambda: MonomialMatrix.random(6, "relu", blocks=4), "6 neurons do not lie evenly in 4 blocks"),
        (lambda: EquivariantLinear(RELU, True, 1), "in_channels must be a whole number, found True"),
        (lambda: EquivariantLinear(RELU, 1, 1, io="half"), "io must be 'full' or 'factored', found 'half'"),
        (lambda: RELU.sample(device="cuda:99x"), "device must be a device that is there, found 'cuda:99x'"),
    ],
)
def test_messages_name_what_and_why(call, message):
    with pytest.raises(MonomialError, match=message):
        call()


def test_autocast_sees_to_dtypes_itself():
    with torch.autocast("cpu", torch.bfloat16):
        assert LINEAR(PACKED.map(torch.Tensor.bfloat16)).tensors[0].dtype is torch.bfloat16


def test_matrices_move_whole_numbers_that_nothing_scales():
    x = torch.arange(6).view(2, 3)
    assert torch.equal(MATRIX.act(x, -1, charge=0), x[:, MATRIX.permutation.argsort()])


def test_elements_of_a_smaller_group_act_on_features():
    for smaller in (RELU.restricted("permutation"), RELU.uncharged()):
        element = RELU.restricted("permutation").sample(2, generator=torch.Generator().manual_seed(0))
        found = GroupElement(smaller, element.matrices).act(PACKED)
        expected = RELU.pack(element.act(NETS))
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected.tensors, strict=True))
