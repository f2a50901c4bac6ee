"""Right calls of layers, models, probes, canonical forms and alignments: all that is built on spaces.

``CALLS`` has a `Call` of every public name, which `core/test_errors.py` makes wrong; those of spaces themselves are in
`calls_of_spaces`.
"""

import torch
from calls_of_spaces import NET, NETS, PACKED, RELU, SINE, SINES, TYPES, D, X, of
from torch import nn
from wrong_calls import Call

import nfn_monomial as nm
from nfn_monomial import WeightSpace
from nfn_monomial.alignment import align_all, barrier, interpolate, kinship, kinships, mean_measures, mean_of, repair
from nfn_monomial.canonical import Balance, absorb_omega, canonical_phase, shift_phase
from nfn_monomial.fibre import align_fibres, compare_fibres, fingerprint_fibre, normal_form
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN, equivariant_stack, recompute_blocks
from nfn_monomial.nn import Augment, InputNorm, MessageBlock, NeuronEmbedding, NeuronPool, NeuronReadout, neuron_layout
from nfn_monomial.read import GramStatistics

NEURONS = NeuronEmbedding(RELU, 1, 2).double()(NETS)
TEMPLATE_NETS = {name: p.detach().expand(2, 1, *p.shape).clone() for name, p in NET.named_parameters()}
UNCHARGED = RELU.uncharged().pack(NETS)
ONE, OTHER_ONE = ({name: x[i, 0] for name, x in NETS.items()} for i in range(2))
PLAIN, NET_SPACE = {name: p.detach() for name, p in NET.named_parameters()}, WeightSpace.from_module(NET, X)
FORM = normal_form(NET, X)
BATCHES = [(X, torch.zeros(1, dtype=torch.int64))]


def sent(layer):
    """A layer's forward."""
    return lambda networks: layer.double()(networks)


LAYERS = {  # built with channels that fit NETS, then sent NETS packed, or neuron features
    "EquivariantLinear": (nm.EquivariantLinear, {"space": RELU, "in_channels": 1, "out_channels": 2}, PACKED),
    "Canonicalize": (nm.Canonicalize, {"space": RELU, "channels": 1, "kind": "norm", "learnable": True}, PACKED),
    "InputNorm": (InputNorm, {"space": RELU, "channels": 1}, PACKED),
    "GramStatistics": (GramStatistics, {"space": RELU, "channels": 1}, PACKED),
    "InvariantStatistics": (nm.InvariantStatistics, {"space": RELU, "channels": 1}, PACKED),
    "Balance": (Balance, {"space": RELU, "scales": True, "signs": True}, PACKED),
    "PointwiseActivation": (nm.PointwiseActivation, {"space": RELU, "fn": "relu", "layout": None}, PACKED),
    "EquivariantNorm": (nm.EquivariantNorm, {"space": RELU, "channels": 2, "reads": [0, 1]}, NEURONS),
    "MessagePassing": (nm.MessagePassing, {"space": RELU, "channels": 2, "tied": True}, NEURONS),
    "GatedActivation": (nm.GatedActivation, {"space": RELU, "channels": 2, "tied": True}, NEURONS),
    "MessageBlock": (
        MessageBlock, {"space": RELU, "channels": 2, "tied": True, "norm": True, "reads": [0], "zeros": [2]}, NEURONS,
    ),
    "NeuronPool": (NeuronPool, {"space": RELU, "channels": 2}, NEURONS),
    "NeuronReadout": (NeuronReadout, {"space": RELU, "channels": 2, "out_channels": 1}, NEURONS),
    "NeuronEmbedding": (NeuronEmbedding, {"space": RELU, "in_channels": 1, "channels": 2}, PACKED),
    "EquivariantNFN": (
        nm.EquivariantNFN, {"space": RELU, "channels": (2,), "in_channels": 1, "init_scale": 0.1}, PACKED,
    ),
    "MonomialNFN": (
        nm.MonomialNFN,
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
CALLS = {
    **{name: Call(kind, given) for name, (kind, given, _) in LAYERS.items()},
    **{f"{name}.forward": Call(sent(kind(**given)), {"networks": x}) for name, (kind, given, x) in LAYERS.items()},
    **{
        f"{name}.forward, named": Call(sent(kind(**given)), {"networks": NETS})
        for name, (kind, given, x) in LAYERS.items()
        if x is PACKED and name not in ("EquivariantLinear", "Canonicalize", "PointwiseActivation")
    },
    "recompute_blocks": Call(recompute_blocks, {"model": MessagePassingNFN(RELU, 2), "recompute": True}),
    "align": Call(nm.align, {"space": RELU, "a": ONE, "b": OTHER_ONE, "symmetry": None, "seed": 0}),
    "align_all": Call(align_all, {"space": RELU, "networks": [ONE, OTHER_ONE], "symmetry": None, "seed": 0}),
    "compare": Call(nm.compare, {"space": NET_SPACE, "a": PLAIN, "b": PLAIN, "module": NET, "inputs": X, "seed": 0}),
    "fingerprint": Call(nm.fingerprint, {"space": RELU, "network": ONE}),
    "normal_form": Call(
        normal_form, {"module": NET, "example_inputs": X, "kwargs": None, "frozen": None}, also=(TypeError,)
    ),
    "NormalForm": Call(of(FORM), {"networks": PLAIN}),
    "NormalForm.sample": Call(of(FORM.sample), {"networks": PLAIN}),
    "NormalForm.write": Call(of(FORM.write), {"networks": PLAIN}),
    "kinship": Call(kinship, {"space": RELU, "a": ONE, "b": OTHER_ONE, "draws": 9, "seed": 0}),
    "kinships": Call(kinships, {"space": RELU, "networks": [ONE, OTHER_ONE], "draws": 9, "seed": 0}),
    "align_fibres": Call(align_fibres, {"form": FORM, "a": PLAIN, "b": PLAIN, "seed": 0}),
    "compare_fibres": Call(compare_fibres, {"form": FORM, "a": PLAIN, "b": PLAIN, "seed": 0}),
    "fingerprint_fibre": Call(fingerprint_fibre, {"form": FORM, "network": PLAIN}),
    "mean_of": Call(mean_of, {"networks": [ONE, OTHER_ONE], "weights": [0.5, 0.5]}),
    "interpolate": Call(interpolate, {"a": ONE, "b": OTHER_ONE, "t": 0.5}),
    "barrier": Call(barrier, {"losses": [1.0, 4.0, 3.0]}),
    "mean_measures": Call(
        mean_measures,
        {"module": NET, "networks": [PLAIN], "batches": BATCHES, "measure": nn.functional.cross_entropy},
        also=(TypeError,),
    ),
    "repair": Call(
        repair, {"module": NET, "merged": PLAIN, "endpoints": [PLAIN, PLAIN], "inputs": X, "weights": [0.5, 0.5]}
    ),
    "InvariantPool": Call(nm.InvariantPool, {"space": RELU, "channels": 1, "reduce": "mean"}),
    "InvariantPool.forward": Call(sent(nm.InvariantPool(RELU, 1)), {"networks": UNCHARGED}),
    "InputNorm.fit": Call(of(InputNorm(RELU).fit), {"networks": NETS}),
    "Augment": Call(Augment, {"space": SINE, "scale_range": (1.0, 2.0), "noise": 0.1, "phases": 1, "layers": ("h1",)}),
    "Augment.forward": Call(sent(Augment(SINE, noise=0.1, phases=2)), {"networks": SINES}),
    "TensorProduct": Call(
        nm.TensorProduct,
        {
            "space": RELU, "in_channels": 1, "out_channels": 1, "second_channels": 1,
            **TYPES,
            "terms": "standard", "mix": "full",
        },
        also=(TypeError,),
    ),
    "TensorProduct.forward": Call(lambda x, y: nm.TensorProduct(RELU, 1, 1).double()(x, y), {"x": PACKED, "y": PACKED}),
    "ProbeFeatures": Call(
        nm.ProbeFeatures, {"template": NET, "probes": torch.randn(3, 2, dtype=D), "input_shape": None, "space": None}
    ),
    "ProbeFeatures.forward": Call(of(nm.ProbeFeatures(NET, 3)), {"tensors": TEMPLATE_NETS}),
    "Probed": Call(nm.ProbeFeatures(NET, 3), {"tensors": TEMPLATE_NETS}),
    "balance": Call(nm.balance, {"tensors": NETS, "space": RELU, "scales": True, "signs": True}),
    "absorb_omega": Call(absorb_omega, {"tensors": SINES, "space": SINE, "omega_0": 30.0, "layers": ("h1",)}),
    "canonical_phase": Call(canonical_phase, {"tensors": SINES, "space": SINE, "layers": ("h1",)}),
    "shift_phase": Call(
        shift_phase, {"tensors": SINES, "space": SINE, "shifts": {"h1": torch.ones(3)}, "layers": ("h1",)}
    ),
    "equivariant_stack": Call(
        equivariant_stack, {"space": RELU, "channels": (1, 2, 2), "activation": "auto", "io": "full"}
    ),
    "neuron_layout": Call(neuron_layout, {"space": RELU}),
}  # fmt: skip
TAKES = {  # call -> argument -> what means something there
    "align": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "align_all": {"seed": "-1, 2**40"},
    "compare": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "normal_form": {"frozen": "list, tuple", "kwargs": "dict"},
    "NormalForm": {"networks": "[more]"},
    "NormalForm.sample": {"networks": "[more]"},
    "NormalForm.write": {"networks": "[more]"},
    "kinship": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "kinships": {"seed": "-1, 2**40"},
    "align_fibres": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "compare_fibres": {"a": "[more]", "b": "[more]", "seed": "-1, 2**40"},
    "fingerprint": {"network": "[more]"},
    "fingerprint_fibre": {"network": "[more]"},
    "mean_of": {"weights": "list of 4.5"},
    "interpolate": {"t": "0"},
    "barrier": {"losses": "list of 4.5, tensor, bool tensor"},
    "repair": {"merged": "dict, [more]", "weights": "list of 4.5"},
    "EquivariantNFN": {"channels": "list, tuple", "init_scale": "0, -1, 2**40, 4.5"},
    "MonomialNFN": {"dropout": "0"},
    "MessagePassingNFN": {"dropout": "0"},
    "MessagePassingEditor": {"init_scale": "0, -1, 2**40, 4.5"},
    "NeuronEmbedding.forward, named": {"networks": "[with NaN], [infinite]"},  # values are not looked at in a model
    "TensorProduct.forward": {"y": "None"},
    "Augment": {"noise": "0, 2**40, 4.5", "phases": "0", "layers": "list, tuple"},
    "ProbeFeatures": {"input_shape": "list, tuple"},  # not looked at where probes are given
    "absorb_omega": {"tensors": "[with NaN], [infinite]", "omega_0": "-1, 2**40, 4.5", "layers": "list, tuple"},
    "canonical_phase": {"layers": "list, tuple"},
    "EquivariantNorm": {"reads": "list, tuple"},
    "MessageBlock": {"reads": "list, tuple", "zeros": "list, tuple"},
    "shift_phase": {"shifts": "dict, [tensor], [scalar]"},
}
