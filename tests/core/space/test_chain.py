"""Reading modules: the chain of layers, the symmetries between them; the group keeps real networks' functions."""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.space.chain import chain_of
from nfn_monomial.testing import assert_function_preserved

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
AVG = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
MAX = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}


def perturbed(module: nn.Module) -> nn.Module:
    """In float64 with larger biases, so that no activation is in a regime where more symmetries hold than it has."""
    with torch.no_grad():
        for name, p in module.double().named_parameters():
            p.mul_(1.5) if name.endswith("weight") else p.normal_()
    return module


# What is between the layers, the shape of one input, the network.
# fmt: off
NETWORKS = {
    "mlp relu": ("SCALE SCALE", (3,), lambda: nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 2),
    )),
    "mlp tanh, a bias missing": ("SIGN", (3,), lambda: nn.Sequential(
        nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2),
    )),
    "mixed": ("SCALE PERMUTATION SIGN MONOMIAL", (3,), lambda: nn.Sequential(
        nn.Linear(3, 5), nn.LeakyReLU(0.1), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 4), nn.Softsign(), nn.Dropout(),
        nn.Linear(4, 3, bias=False), nn.Linear(3, 2), nn.Sigmoid(),
    )),
    "sequences": ("SCALE", (7, 3), lambda: nn.Sequential(nn.Linear(3, 5), nn.PReLU(), nn.Linear(5, 2))),
    "two activations": ("PERMUTATION", (3,), lambda: nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.Tanh(), nn.Linear(5, 2),
    )),
    "conv1d": ("SCALE SCALE", (2, 10), lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 3, 2, padding=1, padding_mode="circular"),
        nn.LeakyReLU(), nn.Flatten(), nn.Linear(3 * 5, 2),
    )),
    "conv2d": ("SIGN SIGN SIGN", (2, 9, 9), lambda: nn.Sequential(
        nn.ZeroPad2d(1), nn.Conv2d(2, 4, 3, stride=2, dilation=2), nn.Tanh(), nn.ReflectionPad2d(1),
        nn.Conv2d(4, 3, (1, 3), padding="same", bias=False), nn.Tanh(), nn.AvgPool2d(2), nn.Upsample(scale_factor=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2),
    )),
    "conv2d, max-pooling": ("PERMUTATION SCALE", (1, 8, 8), lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        nn.Linear(4, 2),
    )),
    "conv3d": ("SCALE SCALE SCALE", (1, 3, 3, 3), lambda: nn.Sequential(
        nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Dropout3d(), nn.Conv3d(3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * 8, 4), nn.ReLU(), nn.Linear(4, 1),
    )),
    "all convolutional": ("SCALE", (1, 4, 4), lambda: nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.AdaptiveAvgPool2d(1),
    )),
    "padding with ones": ("PERMUTATION", (1, 4), lambda: nn.Sequential(
        nn.Conv1d(1, 3, 2), nn.ReLU(), nn.ConstantPad1d(1, 1.0), nn.Conv1d(3, 2, 2),
    )),
    "softmax": ("PERMUTATION", (3,), lambda: nn.Sequential(
        nn.Linear(3, 5), nn.Softmax(-1), nn.Linear(5, 2), nn.LogSoftmax(-1),
    )),
    "nested": ("SCALE", (3,), lambda: nn.Sequential(
        nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.ReLU())), nn.Sequential(nn.Identity(), nn.Linear(5, 2)),
    )),
    "one layer": ("", (3,), lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh())),
}
# fmt: on


@pytest.mark.parametrize("name", NETWORKS)
def test_the_group_keeps_the_function_of_real_networks(name: str) -> None:
    torch.manual_seed(0)
    expected, shape, make = NETWORKS[name]
    module = perturbed(make())
    x = torch.randn(6, *shape, dtype=torch.float64)
    chain = chain_of(module)
    assert " ".join(map(str, chain.symmetries)) == expected
    assert chain_of(module, x) == chain
    space = WeightSpace.from_module(module)
    assert space == WeightSpace.from_module(module, example_input=x)
    assert list(space.parameters) == [n for n, p in module.named_parameters() if p.ndim > 1 or n.endswith("bias")]
    assert_function_preserved(module, space, x)


@pytest.mark.parametrize("name", [name for name in NETWORKS if NETWORKS[name][0]])
def test_no_larger_group_keeps_it(name: str) -> None:
    """Every hidden node with a smaller group than MONOMIAL has the largest one that works."""
    torch.manual_seed(0)
    _, shape, make = NETWORKS[name]
    module = perturbed(make())
    x = torch.randn(20, *shape, dtype=torch.float64)
    found = chain_of(module).symmetries
    for node, symmetry in enumerate(found):
        for larger in (Symmetry.SIGN, Symmetry.SCALE):
            if not larger <= symmetry:
                wrong = WeightSpace.from_module(module, symmetry=[*found[:node], larger, *found[node + 1 :]])
                with pytest.raises(AssertionError, match="changes the network's function"):
                    assert_function_preserved(module, wrong, x, rtol=1e-6)


@st.composite
def sequentials(draw):
    """Random Sequential CNNs and MLPs with an input, every layer kind that is supported."""
    ndim, bias = draw(st.sampled_from([0, 1, 2, 3])), st.booleans()
    activation = st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.Softsign, nn.LeakyReLU, nn.Identity])
    size, channels, layers = 7 - ndim, draw(st.integers(1, 3)), []
    shape = (channels, *[size] * ndim)
    for _ in range(draw(st.integers(1, 3)) if ndim else 0):
        out = draw(st.integers(1, 4))
        layers += [
            CONV[ndim](channels, out, draw(st.sampled_from([1, 3])), padding=1, bias=draw(bias)),
            draw(activation)(),
        ]
        layers += [MAX[ndim](2, stride=1)] * draw(st.integers(0, 1))
        channels = out
    if ndim:
        last = draw(st.sampled_from([1, 2]))
        layers += [AVG[ndim](last), nn.Flatten()]
        channels *= last**ndim
    for _ in range(draw(st.integers(1, 3))):
        out = draw(st.integers(1, 4))
        layers += [nn.Linear(channels, out, bias=draw(bias)), draw(activation)()]
        channels = out
    return nn.Sequential(*layers), shape


@given(sequentials(), st.integers(0, 1000))
def test_random_networks_keep_their_function(network: tuple[nn.Module, tuple[int, ...]], seed: int) -> None:
    torch.manual_seed(seed)
    module = perturbed(network[0])
    x = torch.randn(4, *network[1], dtype=torch.float64)
    assert chain_of(module, x) == chain_of(module)
    assert_function_preserved(module, WeightSpace.from_module(module), x, seed=seed, rtol=1e-9)


def test_names_shapes_and_folded_positions() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.Flatten(), nn.Linear(4 * 9, 2))
    space = WeightSpace.from_module(module)
    assert space.shapes() == {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert chain_of(module).positions == {1: 9}
    assert WeightSpace.from_module(nn.Linear(2, 3)).shapes() == {"weight": (3, 2), "bias": (3,)}


# -- forwards of one's own --------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """Registered in another order than it runs; activations are function calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * 4, 2)
        self.conv = nn.Conv1d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).flatten(1))


class Modular(nn.Module):
    """Everything between the layers is a module or a view; one ReLU serves twice."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.features = nn.ModuleList([nn.Conv1d(1, 4, 3), nn.Conv1d(4, 3, 2)])
        self.head = nn.Linear(3 * 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.features:
            x = self.act(conv(x))
        return self.head(x.view(len(x), -1))


class Skip(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.act = nn.ReLU()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x))
        if self.how == "branch":
            return self.third(h) + self.second(h)
        if self.how == "from the input":
            return self.third(self.second(h)) + self.third(x)
        if self.how == "past the end":
            return self.third(self.act(self.second(h))) + h
        if self.how == "in place":
            h = self.second(h)
            h.tanh_()
            return self.third(h)
        if self.how == "residual":
            return self.third(self.second(h) + h)
        return self.second(h)


def test_own_forwards_need_symmetries_or_an_example() -> None:
    x = torch.randn(2, 1, 6, dtype=torch.float64)
    module = perturbed(Functional())
    assert chain_of(module, x).weights == ("conv.weight", "head.weight")
    with pytest.raises(ValueError, match=re.escape("between conv (Conv1d) and head (Linear) is not known")):
        WeightSpace.from_module(module, example_input=x)
    space = WeightSpace.from_module(module, x, symmetry="relu")
    assert_function_preserved(module, space, x)

    shared = perturbed(Modular())
    with pytest.raises(ValueError, match=r"Give symmetry=.*example_input="):
        WeightSpace.from_module(shared)
    found = WeightSpace.from_module(shared, example_input=x)
    assert [node.symmetry for node in found.nodes.values()][1:-1] == [Symmetry.SCALE, Symmetry.SCALE]
    assert_function_preserved(shared, found, x)
    assert found == WeightSpace.from_module(shared, symmetry="scale")


@pytest.mark.parametrize("wrapped", [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))])
def test_a_sequential_that_someone_else_may_call_in_parts(wrapped: nn.Sequential) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = wrapped

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    with pytest.raises(ValueError, match="not known"):
        _ = chain_of(Wrapper()).symmetries
    assert chain_of(Wrapper(), torch.randn(1, 3)).symmetries == (Symmetry.SIGN,)
    chain = chain_of(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), Wrapper(), nn.Linear(2, 2), nn.Linear(2, 2)))
    assert [isinstance(found, str) for found in chain.between] == [True, True, True, False]


def test_skips_and_branches_do_not_pass_for_chains() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3)
    with pytest.raises(
        ValueError, match=re.escape("second (Linear) reads an earlier output than that of third (Linear)")
    ):
        chain_of(Skip("branch"), x)
    with pytest.raises(ValueError, match=re.escape("third (Linear) reads an earlier output")):
        chain_of(Skip("from the input"), x)
    for how in ("past the end", "in place", "residual"):
        with pytest.raises(ValueError, match="not known"):
            _ = chain_of(Skip(how), x).symmetries
        with pytest.raises(ValueError, match="changes what Skip computes"):
            WeightSpace.from_module(Skip(how), x, symmetry="relu")
    with pytest.raises(ValueError, match="third never ran on the example input"):
        chain_of(Skip("nothing"), x)


def test_lazy_layers_need_a_run() -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match=re.escape("0 (LazyLinear) has no shape yet")):
        chain_of(module)
    assert chain_of(module, torch.randn(2, 3)).sizes == (3, 4, 2)


# -- what is refused --------------------------------------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))
        self.inner = nn.Linear(4, 4)


class Masked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs()


class Centred(nn.AvgPool1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - x.mean(1, keepdim=True)


class Nameless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(-1, 3)


def between(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *modules, nn.Linear(4, 4))


LSTM, TIED = nn.LSTM(4, 4), nn.Linear(4, 4)
REFUSED = {
    "batch norm": (between(nn.BatchNorm1d(4)), r"1 \(BatchNorm1d\) is not supported; supported are Linear, ungrouped"),
    "batch norm, nested": (
        between(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4))),
        r"1\.1 \(BatchNorm1d\) is not supported",
    ),
    "layer norm": (between(nn.LayerNorm(4, elementwise_affine=False)), r"1 \(LayerNorm\) is not supported"),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(1, 4, 3)), r"0 \(ConvTranspose2d\) is not supported"),
    "grouped": (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), r"0 \(Conv2d\) is a grouped convolution \(groups=2\)"),
    "attention": (between(nn.MultiheadAttention(4, 1)), r"1 \(MultiheadAttention\) is not supported"),
    "transformer": (between(nn.TransformerEncoderLayer(4, 1, 4)), r"1 \(TransformerEncoderLayer\) is not supported"),
    "recurrent": (between(LSTM), r"1 \(LSTM\) is not supported"),
    "embedding": (nn.Sequential(nn.Embedding(3, 4)), r"0 \(Embedding\) is not supported"),
    "bilinear": (between(nn.Bilinear(4, 4, 4)), r"1 \(Bilinear\) is not supported"),
    "halving": (between(nn.GLU()), r"1 \(GLU\) is not supported"),
    "unflatten": (between(nn.Unflatten(1, (2, 2))), r"1 \(Unflatten\) is not supported"),
    "weight norm": (between(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))), "computes its weight or bias"),
    "pruned": (
        between(prune.random_unstructured(nn.Linear(4, 4), "weight", 1)),
        "computes its weight or bias",
    ),
    "own forward": (between(Masked(4, 4)), r"1 \(Masked\) has a forward of its own"),
    "own pooling": (
        nn.Sequential(nn.Conv1d(1, 4, 1), Centred(2), nn.Conv1d(4, 1, 1)),
        r"1 \(Centred\) has a forward of its own",
    ),
    "own parameters": (between(Scale()), r"1 \(Scale\) has parameters outside of layers: factor"),
    "tied": (nn.Sequential(TIED, nn.ReLU(), TIED), r"2 \(Linear\) runs twice: tied weights"),
    "empty": (nn.Sequential(nn.ReLU()), "Sequential has no layer"),
    "sizes": (
        nn.Sequential(nn.Linear(3, 4), nn.Linear(8, 2)),
        r"1 \(Linear\) reads 8 inputs but 0 \(Linear\) before it has 4",
    ),
    "conv sizes": (nn.Sequential(nn.Conv1d(1, 4, 1), nn.Conv1d(8, 2, 1)), "reads 8 inputs but 0"),
    "flatten sizes": (nn.Sequential(nn.Conv1d(1, 4, 1), nn.Flatten(), nn.Linear(9, 2)), "reads 9 inputs but 0"),
    "conv after linear": (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 2, 1)), "a convolution after a linear layer"),
    "conv after flatten": (nn.Sequential(nn.Conv1d(1, 4, 1), nn.Flatten(), nn.Conv1d(4, 2, 1)), "or a flatten"),
    "linear on columns": (nn.Sequential(nn.Conv1d(1, 4, 1), nn.Linear(4, 2)), r"without a Flatten\(1\)"),
    "flatten 2": (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(2), nn.Linear(4, 2)), r"must be Flatten\(1\)"),
    "flatten 0": (nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(0), nn.Linear(4, 2)), r"must be Flatten\(1\)"),
    "pool over neurons": (between(nn.AvgPool1d(3, 1, 1)), r"1 \(AvgPool1d\) after 0 \(Linear\) would pool or pad over"),
    "pool after flatten": (
        nn.Sequential(nn.Conv1d(1, 4, 1), nn.Flatten(), nn.MaxPool1d(1), nn.Linear(4, 1)),
        "would pool or pad over neurons",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    module, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        WeightSpace.from_module(module)
    with pytest.raises(ValueError, match=message):  # whoever gives the symmetries is told all the same
        WeightSpace.from_module(module, symmetry="permutation")


def test_refused_on_an_example() -> None:
    image, vector = torch.randn(1, 1, 4, 4), torch.randn(1, 4)
    with pytest.raises(ValueError, match=r"without a Flatten\(1\)"):
        chain_of(nn.Sequential(nn.Conv2d(1, 4, 1), nn.Linear(4, 2)), image)
    with pytest.raises(ValueError, match="would pool or pad over neurons"):
        chain_of(between(nn.AvgPool1d(3, 1, 1)), vector)
    with pytest.raises(ValueError, match="runs twice"):
        chain_of(nn.Sequential(TIED, nn.ReLU(), TIED), vector)


def test_weights_shared_by_two_layers() -> None:
    module = between(nn.ReLU())
    module[2].weight = module[0].weight
    with pytest.raises(ValueError, match=r"2 \(Linear\) shares its weight with 0 \(Linear\)"):
        chain_of(module)


def test_unknown_activations_matter_only_when_asked_for() -> None:
    for unknown in (nn.PReLU(4), Nameless(), nn.Threshold(0.1, 0.0)):
        module = between(unknown)
        with pytest.raises(
            ValueError, match=re.escape(f"1 ({type(unknown).__name__}) between 0 (Linear) and 2 (Linear): ")
        ):
            WeightSpace.from_module(module)
        assert WeightSpace.from_module(module, symmetry="permutation").nodes["h1"].symmetry is Symmetry.PERMUTATION
    with pytest.raises(ValueError, match="2 symmetries for 1 hidden node"):
        WeightSpace.from_module(between(nn.ReLU()), symmetry=["relu", "relu"])


def test_no_module() -> None:
    with pytest.raises(TypeError, match="Module is expected, found dict"):
        chain_of({})  # type: ignore[arg-type]


def test_intersections_are_those_of_the_groups() -> None:
    acts = {Symmetry.SCALE: nn.ReLU(), Symmetry.SIGN: nn.Tanh(), Symmetry.PERMUTATION: nn.GELU()}
    for (a, first), (b, second) in itertools.product(acts.items(), repeat=2):
        assert chain_of(between(first, second)).symmetries == (a & b,)
