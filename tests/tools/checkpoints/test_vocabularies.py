"""A child with more tokens is told by the rows that both have."""

from pathlib import Path

import pytest
import torch
from invoking import said
from own_networks import State, saved
from torch import Tensor, nn

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import compare_checkpoints
from nfn_monomial.tools.definitions.define import define

X = torch.randint(20, (4, 5))


class Words(nn.Module):
    def __init__(self, tokens: int = 20, width: int = 24, places: int = 8) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, 16), nn.Parameter(torch.randn(places, 16))
        self.up, self.down, self.head = nn.Linear(16, width), nn.Linear(width, 16), nn.Linear(16, tokens)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places[: x.shape[1]]
        out: Tensor = self.head(h + self.down(self.up(h).relu()))
        return out


def child_of(state: State, **sizes: int) -> State:
    found = Words(**sizes).state_dict()
    for key, t in state.items():
        corner = tuple(map(slice, map(min, t.shape, found[key].shape)))
        found[key][corner] = t[corner] + 0.1 * t.std() * torch.randn(t.shape)[corner]
    return found


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("sizes", [{"tokens": 22}, {"tokens": 24, "places": 12}])
def test_more_tokens_and_places_leave_a_child_one(larger: bool, sizes: dict[str, int], tmp_path: Path) -> None:
    state = Words().state_dict()
    a, b = saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.pt", child_of(state, **sizes))
    other = saved(tmp_path / "c.pt", Words(**sizes).state_dict())
    definition = define(Words(**sizes) if larger else Words(), X)
    found = compare_checkpoints(a, b, net=definition)
    assert found.summary.startswith("a and b: not known to be the same: head.bias is (20,) and (2")
    assert found.to_json()["kinship"]["p_value"] < 1e-20
    assert found.to_json()["same_function"] is False
    assert "If they were trained independently" in found.summary
    apart = compare_checkpoints(a, other, net=definition)
    assert apart.to_json()["kinship"]["p_value"] > 1e-3
    assert "No clear sign of kinship" in apart.summary


def test_other_widths_are_another_architecture_still(tmp_path: Path) -> None:
    definition = define(Words(), X)
    paths = [
        saved(tmp_path / f"{i}.pt", Words(*sizes).state_dict()) for i, sizes in enumerate([(20,), (22, 26), (22,)])
    ]
    for pair in (paths[:2], paths[1:], [paths[1], paths[0]], paths):
        with pytest.raises(
            InvalidValueError, match=r"the weights are of another architecture than Words: of other shape"
        ):
            compare_checkpoints(*pair, net=definition)


def test_the_command_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import torch\nclass Net(torch.nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(torch.nn.Embedding(9, 12), torch.nn.Linear(12, 9))\n"
        "def example_inputs():\n    return torch.zeros(2, 3, dtype=torch.long)\n"
    )
    state = {"0.weight": torch.randn(9, 12), "1.weight": torch.randn(9, 12), "1.bias": torch.randn(9)}
    larger = {key: torch.cat([t, torch.randn(2, *t.shape[1:])]) for key, t in state.items()}
    saved(Path("a.pt"), state)
    saved(Path("b.pt"), larger)
    text = said("compare", "a.pt", "b.pt", "--net", "net.py:Net", "--out", "out")
    assert "kinship is that of the entries that both have" in text
    assert "p = " in text
    assert Path("out/results.json").is_file()
