"""Spaces of modules without values, as of networks that are too large for memory, and what a narrower one tells."""

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Of
from torch import Tensor, nn
from versions_of_torch import since_2_13

from nfn_monomial import WeightSpace

TOKENS = torch.arange(10).view(2, 5) % 7


class Language(nn.Module):
    """Attention and a residual stream with norms, at any width."""

    def __init__(self, width: int, heads: int = 2, activation: str = "gelu") -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, width), nn.Linear(width, 7)
        self.block = nn.TransformerEncoderLayer(width, heads, 2 * width, activation=activation, batch_first=True)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.tokens(tokens) * self.scale))
        return out


def on_meta(width: int) -> nn.Module:
    with torch.device("meta"):
        return Language(width, heads=4)


def test_a_module_without_values_has_the_space_that_it_has_with_them() -> None:
    torch.manual_seed(0)
    whole = WeightSpace.from_module(Language(32, heads=4), TOKENS)
    space = WeightSpace.from_module(on_meta(32), TOKENS, certify=False)
    assert (space.nodes, space.parameters, space.dead) == (whole.nodes, whole.parameters, ())
    assert "Not tested" in space.explain()
    tested = WeightSpace.from_module(on_meta(32), TOKENS, certify=Language(8))
    assert tested == whole
    assert tested.dead == ("block.self_attn.in_proj_bias[1]",)
    assert "on a narrower module" in tested.explain()
    assert "Does not matter to the function: block.self_attn.in_proj_bias[1]" in " ".join(tested.explain().split())


def test_a_narrower_module_speaks_for_a_large_one_that_has_values() -> None:
    torch.manual_seed(0)
    module = Language(32, heads=4)
    assert WeightSpace.from_module(module, TOKENS, certify=Language(8)) == WeightSpace.from_module(module, TOKENS)


def test_a_narrower_module_takes_away_what_holds_at_one_size() -> None:
    def pairs(s: Of, x: Tensor) -> Tensor:
        y = F.relu(s.enter(x)).view(len(x), x.shape[1] // 2, -1)
        return s.leave(y.reshape(len(x), -1, x.shape[1]).transpose(1, 2))  # type: ignore[no-any-return]

    def net(width: int) -> Of:
        return Of(pairs, enter=nn.Linear(3, width), leave=nn.Linear(width, 2))

    x = torch.randn(2, 4, 3)
    space = WeightSpace.from_module(net(16).to("meta"), x, certify=net(8))
    assert not any(node.permutes for node in space.nodes.values())
    assert "holds at the example's sizes only" in " ".join(space.explain().split())


def test_what_cannot_be_tested_is_an_error() -> None:
    with pytest.raises(ValueError, match="Language is on the meta device, where nothing can be tested: certify=False"):
        WeightSpace.from_module(on_meta(32), TOKENS)
    with pytest.raises(ValueError, match=r"has another group than .* differ. A narrower module of the same class"):
        WeightSpace.from_module(on_meta(32), TOKENS, certify=Language(8, activation="relu"))


class Scaled(nn.Module):
    def __init__(self, read) -> None:
        super().__init__()
        self.enter, self.leave, self.read = nn.Linear(3, 4), nn.Linear(4, 2), read
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.relu(self.enter(x)) * self.read(self.scale))


@pytest.mark.parametrize("read", [float, int, lambda t: 1.0 if t > 1 else 2.0], ids=["float", "int", "if"])
def test_numbers_that_python_reads_from_a_buffer_are_an_error_with_a_way_out(read) -> None:
    with pytest.raises(ValueError, match=r"Scaled cannot be exported.*: compute with the tensor itself") as told:
        WeightSpace.from_module(Scaled(read), torch.randn(5, 3))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "read",
    [lambda t: t, lambda t: t.item(), pytest.param(lambda t: t.item() ** 2, marks=since_2_13)],
    ids=["itself", "item", "2"],
)
def test_the_way_out_works(read) -> None:
    assert WeightSpace.from_module(Scaled(read), torch.randn(5, 3)).group_dimension == 4
