"""What a space knows of its parameters besides axes: links, other names of tied ones, and those that do not matter."""

import copy
import json
import pickle

import pytest
import torch
from hypothesis import given
from strategies import cnns, mlps
from torch import Tensor, nn
from torch.func import functional_call

from nfn_monomial import Axis, Symmetry, WeightSpace, compare
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import Link, Place, Sum
from nfn_monomial.space.packing import pieces
from nfn_monomial.testing import random_networks


def ends(space):
    return [(link.parameter, link.source, link.target) for link in space.links]


def ends_of(parameter, **charges):
    return tuple(Place(parameter, Axis(node, charge), (i,)) for i, (node, charge) in enumerate(charges.items()))


def test_a_chain_is_listed_from_inputs_to_outputs():
    space = WeightSpace.cnn([1, 4], 3, "relu", head=[5], positions=6)
    assert space.links == (
        Link("weight.0", ends_of("weight.0", h1=1, x=-1), (3, 3), False),
        Link("bias.0", ends_of("bias.0", h1=1), (), False),
        Link("weight.1", ends_of("weight.1", y=1, h1=-1), (6,), True),
        Link("bias.1", ends_of("bias.1", y=1), (), False),
    )


@given(mlps() | cnns())
def test_charges_tell_direction_whatever_the_order_of_dimensions_and_parameters(space):
    turned = WeightSpace(space.nodes, {name: space.parameters[name][::-1] for name in reversed(space.parameters)})
    assert sorted(ends(turned), key=str) == sorted(ends(space), key=str)
    assert [link.target for link in turned.links] == [link.target for link in space.links]
    assert sorted(ends(space.uncharged()), key=str) == sorted(ends(space), key=str)
    sizes = {name: node.size for name, node in space.nodes.items()}
    tensors = random_networks(space, 2, 3)
    taken = pieces(turned, {name: torch.empty(2, 3, *shape) for name, shape in turned.shapes().items()}, sizes)
    for link in turned.links:
        moved = taken[link.parameter].permute(link.order)
        assert moved.shape == (2, *(sizes[end.node] for end in link.ends), *link.kernel, 3)
    taken = pieces(space, tensors, sizes)
    for link in space.links:
        found = taken[link.parameter].permute(link.order)
        assert torch.equal(found.movedim(-1, 1).reshape(tensors[link.parameter].shape), tensors[link.parameter])


def test_loops_skips_ties_and_parameters_without_a_place():
    nodes = {"x": (Symmetry.FIXED, 2), "h": (Symmetry.SCALE, 3), "g": (Symmetry.SCALE, 3)}
    space = WeightSpace(
        nodes,
        {
            "cube": (Axis("h", 1), Axis("g", 1), Axis("x", 1)),
            "skip": (Axis("x", -1), Axis("g", 1)),
            "loop": (Axis("h", -1), Axis("h", 1)),
            "back": (Axis("h", 1), Axis("g", -1)),
            "tie": (Axis("h", 0), Axis("g", 0)),
            "gain": (Axis("g", 2), 4),
            "constant": (5,),
        },
    )
    assert ends(space) == [
        ("loop", "h", "h"), ("back", "g", "h"), ("cube", None, "g"), ("skip", "x", "g"), ("tie", "h", "g"),
        ("gain", None, "g"),
    ]  # fmt: skip
    by_name = {link.parameter: link for link in space.links}
    assert by_name["loop"].axes == (1, 0)
    assert [end.node for end in by_name["cube"].ends] == ["g", "h", "x"]
    assert by_name["gain"].charges == (2,)
    assert by_name["gain"].kernel == (4,)


TOKENS = torch.arange(12).view(2, 6) % 7


class Language(nn.Module):
    """One block of attention between an embedding and a head that is tied to it."""

    def __init__(self, width: int = 6, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tok, self.norm = nn.Embedding(7, width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens)
        q, k, v = (
            layer(self.norm(x)).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return Language().double().eval()


@pytest.fixture(scope="module")
def space(module: nn.Module) -> WeightSpace:
    return WeightSpace.from_module(module, TOKENS)


def test_tied_names_move_with_their_parameter(module, space):
    assert space.ties == {"head.weight": "tok.weight"}
    assert "head.weight" not in space.parameters
    element = space.sample(generator=torch.Generator().manual_seed(0)).proper()
    state = module.state_dict()
    moved = element.act(state)
    assert torch.equal(moved["head.weight"], moved["tok.weight"])
    assert not torch.allclose(moved["tok.weight"], state["tok.weight"])
    twin = copy.deepcopy(module)
    twin.load_state_dict(moved)
    torch.testing.assert_close(twin(TOKENS), module(TOKENS), rtol=1e-9, atol=1e-9)


def test_one_tensor_under_two_names_stays_one(module, space):
    """Or else torch takes the two for a contradiction."""
    state = dict(module.named_parameters(remove_duplicate=False))
    assert state["head.weight"] is state["tok.weight"]
    moved = space.sample(generator=torch.Generator().manual_seed(0)).act(state)
    torch.testing.assert_close(functional_call(module, moved, TOKENS), module(TOKENS), rtol=1e-9, atol=1e-9)


OTHERS = {
    "restricted": lambda s: s.restricted("permutation"),
    "uncharged": lambda s: s.uncharged(),
    "fixed": lambda s: s.fixed("tok"),
    "of the fixed": lambda s: s.fixed("tok").restricted("sign").uncharged(),
    "json": lambda s: WeightSpace.from_json(json.loads(json.dumps(s.to_json()))),
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),  # noqa: S301
    "copy": copy.deepcopy,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_spaces_of_the_same_tensors_know_what_is_tied_and_dead(name, space):
    other = OTHERS[name](space)
    assert other.ties == {"head.weight": "tok.weight"}
    assert other.dead == ("k.bias",)
    if name in ("json", "pickle", "copy"):
        assert other == space
        assert hash(other) == hash(space)


def test_a_piece_of_a_parameter_can_be_dead():
    nodes = {"q": (Symmetry.SCALE, 2), "k": (Symmetry.SCALE, 3)}
    parameters = {"bias": (Sum((Axis("q"), Axis("k"))),), "weight": (Axis("q"), Axis("k", -1))}
    space = WeightSpace(nodes, parameters, dead=["bias[1]"])
    assert space.uncharged().dead == ("bias[1]",)
    with pytest.raises(InvalidValueError, match=r"dead=bias: no parameters or pieces of bias\[0\], bias\[1\], weight"):
        WeightSpace(nodes, parameters, dead=["bias"])


@pytest.mark.parametrize(
    "ties", [{"head": "weight.9"}, {"weight.0": "weight.1"}], ids=["of no parameter", "of two parameters"]
)
def test_names_are_tied_to_parameters(ties):
    parameters = WeightSpace.mlp([2, 3, 1], "relu").parameters
    nodes = WeightSpace.mlp([2, 3, 1], "relu").nodes
    with pytest.raises(InvalidValueError, match="another name of a parameter is expected, then the parameter"):
        WeightSpace(nodes, parameters, ties=ties)


def test_networks_with_all_names_of_what_is_tied_are_compared(module, space):
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    moved = space.sample(generator=torch.Generator().manual_seed(3)).act(state)
    for network in (moved, {name: tensor for name, tensor in moved.items() if name != "head.weight"}):
        assert compare(space, state, network).same_function
        assert compare(space, state, network, module=module, inputs=TOKENS).same_function


def test_two_values_of_what_is_tied_are_refused(module, space):
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(InvalidValueError, match=r"tok\.weight and head\.weight are one tensor"):
        compare(space, state, state | {"head.weight": state["head.weight"] + 1})
