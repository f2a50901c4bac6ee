"""`flex_attention`: with functions of scores and places, and without."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex

from nfn_monomial import WeightSpace
from nfn_monomial.running import answers


class Attention(nn.Module):
    """Two heads of 16, on as many keys or one, with a function of scores and a mask."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.keys = kind, 1 if kind == "grouped" else 2
        self.q, self.k, self.v = (nn.Linear(5, 16 * n) for n in (2, self.keys, self.keys))
        self.o, self.slopes = nn.Linear(32, 3), nn.Parameter(torch.randn(2)) if kind == "slopes" else None

    def score(self, score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if self.kind == "capped":
            return torch.tanh(score)
        if self.slopes is not None:
            return score + self.slopes[head] * (q - k)
        return score

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        heads = ((self.q, 2), (self.k, self.keys), (self.v, self.keys))
        q, k, v = (layer(x).unflatten(-1, (n, 16)).transpose(1, 2) for layer, n in heads)
        mask = flex.create_block_mask(causal, None, None, length, length, "cpu") if self.kind == "causal" else None
        score = None if self.kind in ("none", "grouped", "causal") else self.score
        found = flex.flex_attention(q, k, v, score, mask, enable_gqa=self.keys < 2)
        assert isinstance(found, Tensor)
        return self.o(found.transpose(1, 2).flatten(2))


def causal(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


# Permuted nodes (of heads, of queries with keys, of values with outputs) and scalings.
KINDS = {
    "none": (3, 64),
    "the same": (3, 64),
    "grouped": (3, 32),
    "causal": (2, 64),
    "capped": (2, 64),
    "slopes": (2, 64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_groups_hold_and_are_what_functions_of_scores_leave(kind: str) -> None:
    torch.manual_seed(0)
    module, x = Attention(kind), torch.randn(2, 6, 5)
    for _ in range(2 if kind == "none" else 1):  # what torch compiled at first does not matter later
        space = WeightSpace.from_module(module, x)
        assert (sum(node.permutes for node in space.nodes.values()), space.group_dimension) == KINDS[kind]
        text = space.explain()
        assert "without a rule" not in text
        assert "Too short" not in text


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_it_runs_in_float64_under_the_certificate() -> None:
    module = Attention("capped").double()
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    (found,) = answers(module, dict(module.named_parameters()), x)
    with torch.no_grad():
        torch.testing.assert_close(found, module(x))
