"""Which parameters share a scale: each alone keeps the function, and together they are all scalings."""

import pytest
import torch
from decoders import example_inputs, llama, opt
from torch import nn

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace
from nfn_monomial.fibre import normal_form


def test_a_chain_shares_rows_and_biases_with_columns() -> None:
    first, second = WeightSpace.mlp([3, 5, 4, 2], ["relu", "relu"]).mappings()
    assert (first.node, first.smooth, first.balance, first.size) == ("h1", ("weight.0", "bias.0"), ("weight.1",), 5)
    assert (second.smooth, second.balance, second.size) == (("weight.1", "bias.1"), ("weight.2",), 4)
    assert WeightSpace.mlp([3, 5, 2], "tanh").mappings() == WeightSpace.mlp([3, 5, 2], "gelu").mappings() == []


def test_powers_and_sizes_that_are_not_known() -> None:
    (found,) = WeightSpace.sequential([3, None, 2], [(), ()], "linear").mappings()
    assert (found.powers, found.size) == ((("weight.0", 1), ("bias.0", 1), ("weight.1", -1)), None)


def test_a_recurrent_matrix_is_multiplied_and_divided() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.again, self.leave = nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.enter(x).relu()
            return self.leave(self.again(self.again(x).relu()).relu())

    (found,) = WeightSpace.from_module(Twice(), torch.randn(3, 2)).mappings()
    assert found.smooth == ("enter.weight", "enter.bias", "again.weight", "again.bias")
    assert found.balance == ("again.weight", "leave.weight")


@pytest.mark.parametrize("make", [lambda: llama(keys=1, layers=1), lambda: llama(experts=True, layers=1), opt])
def test_scales_alone_keep_the_function_and_together_are_all(make) -> None:
    torch.manual_seed(0)
    module, ids = make().double().eval(), example_inputs()
    space = WeightSpace.from_module(module, ids)
    found, state, expected = space.mappings(), dict(module.state_dict()), module(ids)
    assert sum(shared.size or 0 for shared in found) == space.group_dimension
    for shared in found:
        gauges = space.nodes[shared.node].gauges
        scales = [torch.ones(shared.size, dtype=torch.float64) for _ in gauges]
        scales[shared.gauge] = torch.randn(shared.size, dtype=torch.float64).exp()
        matrix = MonomialMatrix(scales, torch.arange(shared.size))
        moved = GroupElement(space, {shared.node: matrix}).act(state)
        changed = {name for name, t in moved.items() if not torch.equal(t, state[name])}
        assert changed <= {*shared.smooth, *shared.balance}
        assert changed >= {name for name in {*shared.smooth} ^ {*shared.balance} if state[name].any()}
        assert torch.allclose(torch.func.functional_call(module, moved, ids), expected, rtol=1e-10, atol=1e-10)


def test_normal_forms_say_who_shares_a_rotation() -> None:
    form = normal_form(llama(layers=1).eval(), example_inputs())
    (stream,) = (turn for turn in form.mappings() if turn.kind == "rotations")
    block = "model.layers.0"
    written = [f"{block}.self_attn.o_proj.weight", f"{block}.mlp.down_proj.weight"]
    assert {*stream.writers} == {"model.embed_tokens.weight", *written}
    read = [f"{block}.self_attn.{n}_proj.weight" for n in "qkv"] + [
        f"{block}.mlp.{n}_proj.weight" for n in ("gate", "up")
    ]
    assert {*stream.readers} == {*read, "lm_head.weight"}
    assert (stream.size, stream.centred) == (8, False)
    gains = {turn.writers: turn.readers for turn in form.mappings() if turn.kind == "gains"}
    assert gains["model.norm.weight",] == ("lm_head.weight",)
    assert {turn.kind: turn.size for turn in form.mappings()} == {"gains": 8, "linear": 4, "rotary": 4, "rotations": 8}
