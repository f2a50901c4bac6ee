"""Keys as wrappers leave them, on both sides, and configurations and arguments that lie beside weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import State, moved, saved
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from versions_of_torch import since_2_13

from nfn_monomial.tools import balance_checkpoint, compare_checkpoints
from nfn_monomial.tools.checkpoints.networks import read_networks
from nfn_monomial.tools.definitions.define import define
from nfn_monomial.tools.files.keys import is_of_older_release, placed
from nfn_monomial.tools.files.untrusted import FileError


class Net(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module] = lambda part: part) -> None:
        super().__init__()
        self.encoder = wrap(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU()))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out


class Native(nn.Module):
    """A part of it is called as wrappers call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.head = Net(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.module(x)))
        return out


def within(part: str) -> Callable[[str], str]:
    return lambda key: key.replace("encoder.", f"encoder.{part}.")


NAMES: dict[str, Callable[[str], str]] = {
    "as they are": str,
    "all": lambda key: f"_orig_mod.module.{key}",
    "a part": within("_orig_mod"),
    "a part of a part": lambda key: f"model.{within('module._fsdp_wrapped_module')(key)}",
    "each layer": lambda key: ".".join([*key.split(".")[:-1], "_checkpoint_wrapped_module", key.split(".")[-1]]),
    "all and a part": lambda key: f"_fsdp_wrapped_module.{within('_fsdp_wrapped_module')(key)}",
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "plain": Net,
    "compiled": lambda: torch.compile(Net()),  # type: ignore[return-value]
    "checkpointed": lambda: Net(checkpoint_wrapper),
    "native": Native,
}


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch.compile
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=since_2_13) if kind == "compiled" else kind for kind in MODULES]
)
def test_wrappers_are_taken_out_of_keys_on_both_sides(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]()
    net = define(module, torch.randn(5, 4))
    state = {key: t.detach().clone() for key, t in net.template().state_dict().items()}
    plain = {key.removeprefix("_orig_mod."): t for key, t in state.items()}
    paths = [
        saved(tmp_path / f"{i}.pt", {rename(key): t for key, t in plain.items()})
        for i, rename in enumerate(NAMES.values())
    ]
    found = read_networks(paths, net=net)
    wrapped = dict(module.named_parameters())
    own = {key.replace("_checkpoint_wrapped_module.", ""): t for key, t in wrapped.items()}
    for network in found:
        for name, t in network.items():
            assert torch.equal(t, own[name.replace("_checkpoint_wrapped_module.", "")])
    made = balance_checkpoint(paths[2], net=net)
    made.write(tmp_path / "out")
    assert list(torch.load(tmp_path / "out" / "2.pt", weights_only=True)) == list(map(NAMES["a part"], plain))


def test_names_that_only_wrappers_tell_apart_stay() -> None:
    names = ["module.weight", "weight"]
    assert placed(["module.module.weight", "module.weight"], names, names) == {
        "module.module.weight": "module.weight",
        "module.weight": "weight",
    }
    assert placed(names, names, names) == {name: name for name in names}
    new = "a.module.parametrizations.weight.original0"
    assert placed(["a._orig_mod.weight_g"], [new], [new]) == {"a._orig_mod.weight_g": new}


def test_buffers_of_older_releases_are_left_out_by_what_they_hold(tmp_path: Path) -> None:
    net = define(Net(), torch.randn(5, 4))
    state = net.template().state_dict()
    mask = torch.ones(1, 1, 6, 6).tril().bool()
    older: State = {
        "position_ids": torch.arange(9)[None], "h.0.attn.bias": mask, "h.1.attn.bias": mask.to(torch.uint8),
        "h.0.attn.masked_bias": torch.tensor(-1e4), "self_attention.bias": mask.float(),
    }  # fmt: skip
    assert all(is_of_older_release(key, t) for key, t in older.items())
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", state | older)
    assert compare_checkpoints(a, b, net=net).to_json()["same_function"]
    others: State = {
        "position_ids": torch.arange(9).flip(0)[None], "attn.bias": torch.ones(6), "h.attn.bias": mask.logical_not(),
        "masked_bias": torch.tensor(0.5),
    }  # fmt: skip
    for key, t in others.items():
        assert not is_of_older_release(key, t)
        with pytest.raises(FileError, match=f"unexpected {key}"):
            read_networks([saved(tmp_path / "c.pt", state | {key: t})], net=net)


def beside(folder: Path, state: State, configuration: dict[str, Any] | None) -> Path:
    path = saved(folder / "model.safetensors", state)
    if configuration is not None:
        (folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
    return path


def test_configurations_beside_weights_are_told(tmp_path: Path) -> None:
    net = define(Net(), torch.randn(5, 4))
    state = dict(net.template().state_dict())
    usual = {
        "eps": 1e-5,
        "rope": {"theta": 10000},
        "transformers_version": "4.1",
        "attention_dropout": 0.1,
        "window": None,
    }
    a = beside(tmp_path / "a", state, usual)
    same = beside(
        tmp_path / "same", moved(net, state, 1), {**usual, "dtype": "float16", "attention_dropout": 0, "lr": 1}
    )
    none = beside(tmp_path / "none", state, None)
    deep = beside(tmp_path / "deep", state, {**usual, "rope": {"theta": 10}})
    wide = beside(tmp_path / "wide", state, {**usual, "window": 4})
    for other in (same, none):
        assert compare_checkpoints(a, other, net=net).to_json()["same_function"]
    for other, words in ((deep, "rope.theta 10000 and 10"), (wide, "window not given and 4")):
        found = compare_checkpoints(a, other, net=net)
        assert not found.to_json()["same_function"]
        assert (
            "not known to be the same: the outputs agree on the inputs tried, but what reaches their" in found.summary
        )
        assert words in found.summary
    family = compare_checkpoints(a, deep, same, net=net)
    assert family.to_json()["same_function"] == [["a", "same"]]
    assert "rope.theta 10000 and 10" in family.summary


SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=6, factor=1.0, rate=0.1):
        super().__init__()
        self.first, self.second, self.factor = nn.Linear(4, width), nn.Linear(width, 3), factor

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.factor

def example_inputs():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
"""


def test_arguments_that_trainers_write_down_build_the_class(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE, encoding="utf-8")
    torch.manual_seed(0)
    state = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).state_dict()
    state = {{"0": "first", "2": "second"}[key[0]] + key[1:]: t for key, t in state.items()}

    def lightning(name: str, **arguments: Any) -> Path:
        torch.save({"state_dict": state, "hyper_parameters": arguments, "epoch": 3}, tmp_path / name)
        return tmp_path / name

    a, b = lightning("a.ckpt", width=8, factor=1.0), lightning("b.ckpt", width=8, batch_size=4)
    c = lightning("c.ckpt", width=8, factor=3.0)
    net = f"{tmp_path / 'net.py'}:Net"
    assert compare_checkpoints(a, b, net=net).to_json()["same_function"]
    apart = compare_checkpoints(a, c, net=net)
    assert "a and c: not the same: the outputs differ" in apart.summary
    assert "factor not given and 3.0" in apart.summary
    assert not compare_checkpoints(a, c, net=net, net_args="rate=0").to_json()["same_function"]
    told = compare_checkpoints(a, c, net=net, net_args={"factor": 2.0})
    assert told.to_json()["same_function"], "what is said counts before what is written down"
