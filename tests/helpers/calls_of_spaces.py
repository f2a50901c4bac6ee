"""Right calls of spaces and what they are made of: axes, groups, features, bases, operators; and checks of layers.

``CALLS`` has a `Call` of every public name, which `core/test_errors.py` makes wrong; those of what is built on spaces
are in `calls_of_layers`.
"""

import torch
from nfn_networks import spec_of
from torch import nn
from wrong_calls import Call

import nfn_monomial as nm
from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.basis import BilinearTerm, bilinear_terms, count_bilinear_terms, count_terms
from nfn_monomial.checks import checked
from nfn_monomial.space import Layout, Node, Specification, Sum, field_name
from nfn_monomial.space.trace import OPERATORS
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_element, random_networks

D = torch.float64
RELU, SINE = WeightSpace.mlp([2, 3, 2], "relu"), WeightSpace.mlp([2, 3, 1], "sin")
NETS = random_networks(RELU, 2, generator=torch.Generator().manual_seed(0))
SINES = random_networks(SINE, 2, generator=torch.Generator().manual_seed(0))
PACKED = RELU.pack(NETS)
ELEMENT = RELU.sample(2, generator=torch.Generator().manual_seed(0))
MATRIX = nm.MonomialMatrix.random(3, "relu", generator=torch.Generator().manual_seed(0))
NET = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
NORMED = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
X = torch.ones(1, 2, dtype=D)
H = (Axis("h1", 1),)
NODES = {"h1": Node((Symmetry.SCALE,), 3)}
TYPES = {"first_types": [(Axis("h1", 1),)], "second_types": [(Axis("h1", -1),)], "out_types": [(Axis("h1", 0),)]}


def of(method, **options):
    """A method of a made thing, as a function of keyword arguments."""
    return lambda **given: method(*given.values(), **options)


@checked
def left_of(term: BilinearTerm):
    """What charges a term leaves."""
    return term.imbalance(NODES)


def kept(register):
    """A function that enters something into the tables of activations or operators, which are then as they were."""

    def call(**given):
        tables = (nm.symmetry._PARITIES, OPERATORS)
        before = [dict(table) for table in tables]
        try:
            register(**given)
        finally:
            for table, entries in zip(tables, before, strict=True):
                table.clear()
                table.update(entries)

    return call


CALLS = {
    "Axis": Call(
        lambda **a: WeightSpace({"h": Node((Symmetry.SCALE,), 3)}, {"w": (Axis(**a),)}), {"node": "h", "charge": 1}
    ),
    "Node": Call(
        lambda **a: WeightSpace({"p": Node((Symmetry.SCALE,), 2), "h": Node(**a)}, {"w": (Axis("h"),)}),
        {"gauges": (Symmetry.SCALE,), "size": 3, "parent": "p"},
    ),
    "Sum": Call(lambda parts: WeightSpace(NODES, {"w": (Sum(parts),)}), {"parts": (Axis("h1"), 2)}),
    "Features": Call(nm.Features, {"layout": PACKED.layout, "tensors": PACKED.tensors}),
    "Features []": Call(of(PACKED.__getitem__), {"index": 0}),
    "Features +": Call(lambda right: PACKED + right, {"right": PACKED}, also=(TypeError,)),
    "Features *": Call(lambda right: PACKED * right, {"right": 2.0}, also=(TypeError,)),
    "Features * (right)": Call(lambda left: left * PACKED, {"left": 2.0}, also=(TypeError,)),
    "Layout": Call(Layout, {"types": (H,), "multiplicities": (1,), "acting": ((Symmetry.SCALE,),)}),
    "GroupElement": Call(nm.GroupElement, {"space": RELU, "matrices": {"h1": MATRIX}}),
    "GroupElement @": Call(lambda right: ELEMENT @ right, {"right": ELEMENT}, also=(TypeError,)),
    "GroupElement.act": Call(of(ELEMENT.act), {"tensors": NETS}),
    "GroupElement.act of features": Call(of(ELEMENT.act), {"tensors": PACKED}),
    "MonomialMatrix": Call(
        nm.MonomialMatrix, {"scale": torch.ones(3, dtype=D), "permutation": torch.arange(3), "permutes": True}
    ),
    "MonomialMatrix.identity": Call(nm.MonomialMatrix.identity, {"n": 3, "device": "cpu"}),
    "MonomialMatrix.diagonal": Call(nm.MonomialMatrix.diagonal, {"scale": torch.ones(3, dtype=D)}),
    "MonomialMatrix.random": Call(
        nm.MonomialMatrix.random,
        {
            "n": 4, "symmetry": "relu", "scale_range": (1.0, 2.0), "blocks": 2, "batch": 2, "generator": None,
            "dtype": D, "device": "cpu",
        },
    ),
    "MonomialMatrix @": Call(lambda right: MATRIX @ right, {"right": MATRIX}, also=(TypeError,)),
    "MonomialMatrix.act": Call(of(MATRIX.act), {"x": torch.ones(2, 3, dtype=D), "dim": 1, "charge": 1}),
    "Symmetry": Call(Symmetry, {"value": 5}, also=(ValueError,)),
    "Symmetry.coerce": Call(Symmetry.coerce, {"value": "relu"}),
    "Symmetry &": Call(lambda right: Symmetry.SCALE & right, {"right": Symmetry.SIGN}, also=(TypeError,)),
    "Symmetry <=": Call(lambda right: right >= Symmetry.SCALE, {"right": Symmetry.SIGN}, also=(TypeError,)),
    "symmetry_of": Call(nm.symmetry_of, {"activation": "relu"}),
    "register_activation": Call(kept(nm.register_activation), {"activation": "made_up", "symmetry": "sign"}),
    "register_operator": Call(kept(nm.register_operator), {"target": "made.up", "rule": len}),
    "fold_batchnorm": Call(
        nm.fold_batchnorm, {"module": NORMED, "example_inputs": torch.zeros(1, 1, 8, 8), "kwargs": None}
    ),
    "WeightSpace": Call(WeightSpace, {"nodes": NODES, "parameters": {"w": H}, "label": "x"}),
    "Specification": Call(Specification, {"nodes": NODES, "parameters": {"w": H}}),
    "WeightSpace.mlp": Call(
        WeightSpace.mlp, {"sizes": [2, 3, 1], "symmetry": "relu", "bias": True, "io_symmetry": "fixed"}
    ),
    "WeightSpace.cnn": Call(
        WeightSpace.cnn,
        {
            "channels": [1, 2, 3], "kernel_sizes": 3, "symmetry": "relu", "head": [2], "ndim": 2, "positions": 4,
            "bias": True, "io_symmetry": "fixed",
        },
    ),
    "WeightSpace.sequential": Call(
        WeightSpace.sequential,
        {
            "sizes": [2, 3, 1], "kernels": [(), ()], "symmetry": "relu", "bias": True, "io_symmetry": "fixed",
            "positions": {1: 1}, "names": [("a", "b"), ("c", None)],
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
    "BilinearTerm": Call(left_of, {"term": BilinearTerm(H, (Axis("h1", -1),), (Axis("h1", 0),), "a,a->a")}),
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
            "layer": nm.EquivariantLinear(RELU, 1, 1).double(), "space": RELU, "inputs": PACKED, "out_space": None,
            "channels": None, "batch": 2, "trials": 1, "rtol": 1e-6, "seed": 0,
        },
        also=(AssertionError, TypeError),
    ),
    "assert_invariant": Call(
        assert_invariant,
        {
            "fn": nm.InvariantStatistics(RELU), "space": RELU, "inputs": NETS, "channels": None, "batch": 2,
            "trials": 1, "rtol": 1e-6, "seed": 0,
        },
        also=(AssertionError, TypeError),
    ),
}  # fmt: skip
NUMBERS = "True, 0, -1, 2**40, 4.5, NaN, inf, -inf, complex, scalar"
TAKES = {  # call -> argument -> what means something there
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
    "MonomialMatrix": {"scale": "tensor"},
    "MonomialMatrix.diagonal": {"scale": "tensor, whole, meta"},
    "MonomialMatrix.act": {"x": "complex tensor, NaN tensor", "dim": "-1", "charge": "0, -1, tuple, 2**40"},
    "register_activation": {"activation": "text, no text, class"},
    "fold_batchnorm": {"kwargs": "dict"},
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
