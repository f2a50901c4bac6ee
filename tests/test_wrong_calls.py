"""Wrong calls, each with what its error must say: what was found, and the way out.

That arguments of another kind are refused is asked of every public name; where an error of a new one says more, it has
a line in ``WRONG``.
"""

import inspect
import math

import pytest
import torch
from every_layer import LAYERS, ON_VALUES
from nfn.layers import LearnedScale
from nfn_networks import spec_of
from torch import nn

import nfn_monomial as nm
from nfn_monomial import MonomialError, MonomialMatrix, WeightSpace
from nfn_monomial.adapters import nfn, pyg
from nfn_monomial.adapters.matching import match_names
from nfn_monomial.alignment import align_all, barrier, interpolate, kinship, mean_of
from nfn_monomial.fibre import fingerprint_fibre, normal_form
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.nn import Augment
from nfn_monomial.testing import random_networks

D = torch.float64
RELU, SINE = WeightSpace.mlp([2, 3, 2], "relu"), WeightSpace.mlp([2, 3, 1], "sin")
NETS = random_networks(RELU, 2, generator=torch.Generator().manual_seed(0))
SINES = random_networks(SINE, 2, generator=torch.Generator().manual_seed(0))
PACKED = RELU.pack(NETS)
NET = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
PLAIN = {name: p.detach() for name, p in NET.named_parameters()}
X = torch.ones(1, 2, dtype=D)
ONE = {name: x[0, 0] for name, x in NETS.items()}
MATRIX = MonomialMatrix.random(3, "relu", generator=torch.Generator().manual_seed(0))
LINEAR = nm.EquivariantLinear(RELU, 1, 1)
GRAPH = pyg.to_graph(NETS, RELU)
STACKED = {name: x.expand(2, 1, *x.shape) for name, x in PLAIN.items()}


def changed(tensors, **others):
    """The same with other tensors, in whose names a dot is ``__``."""
    return tensors | {name.replace("__", "."): x for name, x in others.items()}


WRONG = {
    # Spaces and their groups
    "size": (lambda: WeightSpace.mlp([2, 0, 1], "relu"), r"sizes\[1\] must be at least 1, found 0"),
    "one size": (lambda: WeightSpace.mlp([2], "relu"), r"needs at least input and output size, found \[2\]"),
    "activation": (
        lambda: WeightSpace.mlp([2, 3, 1], "rleu"),
        "unknown activation or symmetry 'rleu'; symmetries: fixed, .*; activations: abs, ",
    ),
    "inputs": (
        lambda: WeightSpace.from_module(NET, torch.ones(1, 3, dtype=D)),
        r"does not run on the example inputs, torch.float64 \(1, 3\): .*; give inputs as for a call",
    ),
    "no module": (
        lambda: WeightSpace.from_module(NET.forward, X),
        "module must be Module or ExportedProgram, found method",
    ),
    "other nodes": (lambda: RELU.sample(sizes={"h2": 4}), "sizes= has h2; nodes of .*: x, h1, y"),
    "range": (
        lambda: RELU.sample(scale_range=(2.0, 1.0)),
        r"must be 0 < lo <= hi < inf, found \(2.0, 1.0\): scales are positive; sign flips come with Symmetry.SIGN",
    ),
    "blocks": (lambda: MonomialMatrix.random(6, "relu", blocks=4), "6 neurons do not lie evenly in 4 blocks"),
    "rounded": (
        lambda: MATRIX.act(torch.ones(2, 3, dtype=torch.int64), 1),
        "torch.int64 would be rounded; convert the tensor with .double",
    ),
    "other space": (
        lambda: RELU.sample(2).act(SINE.pack(SINES)),
        r"cannot act on features of another space, \[4 x h1.*sample it from the space that packed them",
    ),
    "device": (lambda: RELU.sample(2, device="nowhere"), "device must be a device that is there, found 'nowhere'"),
    "fold": (lambda: nm.fold_batchnorm(NET, "x"), "example_inputs must be a dense tensor or a sequence .*, found 'x'"),
    # Networks
    "shape": (
        lambda: RELU.pack(changed(NETS, weight__0=NETS["weight.0"][..., :1])),
        r"weight.0 has shape \(3, 1\) .* expects weight.0 \(B, C, h1=3, x=2\): axis 'x' is 2, and 1 here. Was this",
    ),
    "missing": (
        lambda: RELU.pack({"weight.0": NETS["weight.0"]}),
        "missing: bias.0, weight.1, bias.1. Expected: weight.0",
    ),
    "None": (lambda: RELU.pack(changed(NETS, bias__0=None)), "bias.0 must be a dense tensor, found None"),
    "dtypes": (
        lambda: RELU.pack(changed(NETS, bias__0=NETS["bias.0"].float())),
        "bias.0 is torch.float32 on cpu but weight.0 is torch.float64 on cpu; convert all",
    ),
    "sparse": (
        lambda: RELU.pack(changed(NETS, weight__0=NETS["weight.0"].to_sparse())),
        "weight.0 must be a dense tensor, found a torch.sparse_coo tensor of shape",
    ),
    # Layers and models
    "channels": (
        lambda: LINEAR(PACKED.map(lambda x: torch.cat([x, x], -1).float())),
        r"field \[h1\^\+1\] has shape \(2, 3, 6\).*; the layer was built for 1 channels",
    ),
    "no channels": (lambda: nm.EquivariantLinear(RELU, True, 1), "in_channels must be a whole number, found True"),
    "word": (lambda: nm.EquivariantLinear(RELU, 1, 1, io="sparse"), "io must be 'full' or 'factored', found 'sparse'"),
    "nonlinearity": (
        lambda: nm.PointwiseActivation(RELU, "gelu"),
        "gelu is illegal on field .*: gelu commutes with PERMUTATION only. Legal there: 'relu'",
    ),
    "dtype of a layer": (
        lambda: LINEAR(PACKED),
        r"the networks are torch.float64, the parameters of the layer torch.float32: convert one of them",
    ),
    "device of a layer": (
        lambda: nm.EquivariantLinear(RELU, 1, 1).to("meta")(PACKED.map(torch.Tensor.float)),
        "the networks are on cpu, the parameters of the layer on meta: move one of them",
    ),
    "dropout": (lambda: MessagePassingNFN(RELU, 2, dropout=1.5), "dropout must be at most 1, found 1.5"),
    "phases": (
        lambda: Augment(RELU, phases=1),
        r"node 'h1' of .* is no layer sin\(W x \+ b\): it has the symmetry SCALE.* Give the space that packed",
    ),
    "layers": (
        lambda: Augment(SINE, layers=("h9",)),
        "node 'h9' of .*: it is not one of its hidden nodes .*: h1. Give the space",
    ),
    "probes": (
        lambda: nm.ProbeFeatures(NET, torch.randn(3, 5, dtype=D)),
        r"the template does not take inputs of shape \(5,\)",
    ),
    "NaN to probes": (
        lambda: nm.ProbeFeatures(NET, 2)(changed(STACKED, **{"0__weight": STACKED["0.weight"] * math.nan})),
        "0.weight holds 12 NaN or infinite values",
    ),
    "NaN": (lambda: MessagePassingNFN(RELU, 2, dropout=math.nan), "dropout must be finite, found nan"),
    "infinite": (lambda: nm.EquivariantNFN(RELU, (2,), init_scale=math.inf), "init_scale must be finite, found inf"),
    "half": (lambda: nm.EquivariantLinear(RELU, 1.5, 1), "in_channels must be a whole number, found 1.5"),
    "huge": (lambda: nm.EquivariantLinear(RELU, 2**40, 1), "in_channels must be at most 1048576, found 1099511627776"),
    "letters": (lambda: WeightSpace.mlp("231", "relu"), "sizes must be a sequence of a whole number, found '231'"),
    "rows": (
        lambda: nm.EquivariantNFN(RELU, torch.tensor([2])),
        "channels must be a sequence of a whole number, found a tensor",
    ),
    "eight bits": (
        lambda: RELU.pack({n: x.to(torch.float8_e4m3fn) for n, x in NETS.items()}),
        "floating point is expected: tensor.float",
    ),
    "whole numbers": (
        lambda: LINEAR(PACKED.map(torch.Tensor.long)),
        "must be a dense tensor of floating point numbers, found .*int64",
    ),
    # Comparing
    "align": (
        lambda: nm.align(RELU, ONE, NETS),
        r"network b .*: weight.0 has 6 dimensions .*; for a single network without channels add them: tensor",
    ),
    "align one": (lambda: align_all(RELU, []), "at least two networks are needed, found 0"),
    "draws": (lambda: kinship(RELU, ONE, ONE, draws=0), "kinship: draws must be at least 1, found 0"),
    "weights": (lambda: mean_of([ONE, ONE], [0.5]), r"mean_of: 2 networks need as many finite weights, found \[0.5\]"),
    "other names": (
        lambda: interpolate(ONE, PLAIN, 0.5),
        "one network has 0.bias, .* the other has not: both must be of one architecture",
    ),
    "losses": (lambda: barrier([1.0]), r"losses must be two numbers or more, finite at both ends, found \[1.0\]"),
    "form": (
        lambda: normal_form(NET, X)(changed(PLAIN, **{"0__weight": PLAIN["0.weight"][:2]})),
        r"0.bias has shape \(3,\) .*: axis 'layer0' is 2 in 0.weight, and 3 here",
    ),
    "frozen": (
        lambda: normal_form(NET, X, frozen=["nobody"]),
        r"frozen= has \['nobody'\], no parameters of the module: 0.weight, 0.bias",
    ),
    "fibre": (
        lambda: fingerprint_fibre(normal_form(NET, X), ONE),
        "has 4 parameters, 0 tensors given; missing: 0.weight",
    ),
    # Adapters
    "nfn": (
        lambda: nfn.MonomialLinear(spec_of(RELU), 1, 1, symmetry="relu")(NETS),
        "nfn's WeightSpaceFeatures are expected, found dict",
    ),
    "nfn channels": (
        lambda: nfn.MonomialLinear(spec_of(RELU), 2, 1, symmetry="relu")(nfn.from_tensors(NETS)),
        "whose last dimension is 1 channels x multiplicity 3; the layer was built for 2 channels",
    ),
    "names": (
        lambda: match_names({"a": NETS["weight.0"]}, RELU),
        r"the keys of the state dict do not fit .*: 'a' \(2, 1, 3, 2\). Missing: weight.0 .* say which is which",
    ),
    "graph of others": (
        lambda: pyg.from_graph(GRAPH, SINE),
        "graph 0 is of another weight space: its layers have 2-3-2 neurons, .* has 2-3-1",
    ),
    "kernel": (lambda: pyg.to_graph(NETS, RELU, kernel=(0,)), r"to_graph: kernel\[0\] must be at least 1, found 0"),
    "act": (
        lambda: pyg.act(GRAPH, SINE.sample(2)),
        "graph 0 is of another weight space: its layers have 2-3-2 neurons",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_errors_say_what_was_found_and_the_way_out(call):
    wrong, message = WRONG[call]
    with pytest.raises(MonomialError, match=message):
        wrong()


MODULES = (
    nm, nm.alignment, nm.nn, nm.models, nm.canonical, nm.fibre, nm.read, nm.basis, nm.space, nfn, pyg,
)  # fmt: skip
NOT_CHECKED = {  # parts of spaces, which a space looks at, and answers
    "Axis", "BilinearTerm", "Link", "Node", "Piece", "Place", "SharedScale", "SharedTurn", "Sum",
    "Alignment", "CommonFrame", "Comparison", "FibreComparison", "Kinship", "LayerDistance", "NodeKinship",
    "NormalForm", "Probed",
}  # fmt: skip


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def public_functions():
    """Functions and classes of the package that need an argument, by name."""
    named = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    for name, thing in named.items():
        ours = callable(thing) and str(getattr(thing, "__module__", "")).startswith("nfn_monomial")
        raised = isinstance(thing, type) and issubclass(thing, BaseException)
        if ours and not raised and name.rpartition(".")[2] not in NOT_CHECKED:
            parameters = inspect.signature(thing).parameters.values()
            needed = [p.name for p in parameters if p.default is p.empty and p.kind not in VARIABLE]
            if needed:
                yield pytest.param(thing, needed, id=name)


@pytest.mark.parametrize(("function", "needed"), [*public_functions()])
def test_every_public_name_refuses_arguments_of_another_kind(function, needed):
    with pytest.raises(MonomialError, match=r"object|symmetry|graph|dtype|target|WeightSpaceFeatures"):
        function(**{name: object() for name in needed})


FORWARDS = {name: make(RELU) for name, make in (LAYERS | ON_VALUES).items()} | {
    "TensorProduct": nm.TensorProduct(RELU, 1, 1),
    "Augment": Augment(SINE),
    "ProbeFeatures": nm.ProbeFeatures(NET, 2),
    "nfn.MonomialLinear": nfn.MonomialLinear(spec_of(RELU), 1, 1, symmetry="relu"),
    "nfn.MonomialLinear, embedded": nfn.MonomialLinear(spec_of(RELU), 1, 1, io_embed=True, symmetry="relu"),
    "nfn.MonomialLayerNorm": nfn.MonomialLayerNorm(spec_of(RELU), 2, symmetry="relu"),
    "nfn.MonomialChannelLinear": nfn.MonomialChannelLinear(spec_of(RELU), 1, 2, symmetry="relu"),
    "nfn.MonomialMessagePassing": nfn.MonomialMessagePassing(spec_of(RELU), 1, 1, symmetry="relu"),
    "nfn.MonomialStatistics": nfn.MonomialStatistics(spec_of(RELU), symmetry="relu"),
    "nfn.MonomialPool": nfn.MonomialPool(spec_of(RELU)),
    "nfn.MonomialStack": nfn.MonomialStack(
        spec_of(RELU), nfn.MonomialLinear(spec_of(RELU), 1, 1, symmetry="relu"), LearnedScale(spec_of(RELU), 1.0)
    ),
    "MonomialConv": pyg.MonomialConv(2),
    "MonomialBlock": pyg.MonomialBlock(2),
    "MonomialEmbedding": pyg.MonomialEmbedding(2, (1,), 2, 1),
    "ToGraph": pyg.ToGraph(RELU),
    "FromGraph": pyg.FromGraph(RELU),
}


@pytest.mark.parametrize("layer", FORWARDS)
def test_every_layer_refuses_what_are_no_networks(layer):
    parameters = inspect.signature(FORWARDS[layer].forward).parameters.values()
    arguments = sum(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in parameters)
    for wrong in (None, "nonsense", torch.ones(3), {"weight.0": None}):
        with pytest.raises(MonomialError, match=r"found|expected|given|must be|need"):
            FORWARDS[layer](*[wrong] * arguments)


def test_no_text_is_made_of_what_is_right(monkeypatch):
    """Texts of networks and spaces are long, and for errors alone, also where an argument may be of several kinds."""
    monkeypatch.setattr("nfn_monomial.checks.shown", lambda value: pytest.fail(f"a text of {type(value)} was made"))
    element = RELU.sample(generator=torch.Generator().manual_seed(0))
    assert nm.compare(RELU, element.act(ONE), ONE).verdict.startswith("the same function")
    WeightSpace.from_module(NET, (X,))
    nm.Canonicalize(RELU, 1)(PACKED)
