"""A file's function is what its class makes of it: by hooks, by methods of its own, by a state that is no tensor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import State, moved, saved
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from nfn_monomial.tools import align_checkpoints, balance_checkpoint, compare_checkpoints, find_symmetries
from nfn_monomial.tools.checkpoints.networks import read_networks
from nfn_monomial.tools.definitions.define import Definition, define
from nfn_monomial.tools.files.untrusted import FileError


class Scaled(nn.Module):
    """Takes a factor from its extra state: a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(4, 6), nn.Linear(6, 3), 1.0

    def get_extra_state(self) -> Any:
        return torch.tensor([self.scale])

    def set_extra_state(self, state: Any) -> None:
        self.scale = float(state)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(x))) * self.scale
        return out


class Tempered(Scaled):
    """Takes it from a dict."""

    def get_extra_state(self) -> Any:
        return {"temperature": 1 / self.scale, "history": [1, 2]}

    def set_extra_state(self, state: Any) -> None:
        self.scale = 1 / state["temperature"]


class Unsaved(Scaled):
    """Has it in a buffer that is not saved, in a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = Factor()

    def get_extra_state(self) -> Any:
        return {"kept": True}

    def set_extra_state(self, state: Any) -> None:
        pass

    @property
    def scale(self) -> Any:
        return self.factor.value

    @scale.setter
    def scale(self, value: float) -> None:
        if "factor" in self._modules:
            self.factor.value = torch.tensor(value)


class Factor(nn.Module):
    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones(()), persistent=False)

    def get_extra_state(self) -> Any:
        return float(self.value)

    def set_extra_state(self, state: Any) -> None:
        self.value = torch.tensor(float(state))


def written(kind: Callable[[], Any], state: State | None = None, scale: float = 1.0) -> Any:
    """What a module of a class saves, with other tensors."""
    module = kind()
    module.scale = scale
    found = module.state_dict()
    found.update(state or {})
    return found


def tensors(kind: Callable[[], nn.Module], seed: int) -> State:
    torch.manual_seed(seed)
    return {key: t.detach().clone() for key, t in kind().named_parameters()}


def outputs(kind: Callable[[], nn.Module], path: Path, x: Tensor) -> Tensor:
    """As its owner reads it."""
    module = kind().eval()
    module.load_state_dict(torch.load(path, weights_only=True))
    return module(x).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Scaled, Tempered, Unsaved])
def test_an_extra_state_is_part_of_the_function(kind: type[nn.Module], tmp_path: Path) -> None:
    net = define(kind(), torch.randn(5, 4), template=kind)
    state = tensors(kind, 1)
    other = moved(net, state, 2)
    paths = [
        saved(tmp_path / name, written(kind, tensors, scale))
        for name, tensors, scale in (
            ("a.pt", state, 1.0),
            ("b.pt", other, 3.0),
            ("c.pt", other, 1.0),
            ("d.pt", state, 3.0),
        )
    ]
    a, b, c, d = paths
    x = torch.randn(7, 4)
    torch.testing.assert_close(outputs(kind, b, x), 3 * outputs(kind, a, x), rtol=1e-4, atol=1e-5)
    apart = compare_checkpoints(a, b, net=net)
    assert not apart.to_json()["same_function"]
    assert "a and b: not the same: the outputs differ" in apart.summary
    assert "What reaches their functions beside the weights differs: " in apart.summary
    assert apart.to_json()["relative_output_difference"] == pytest.approx(2)
    for pair in ((a, c), (b, d)):
        assert compare_checkpoints(*pair, net=net).to_json()["same_function"]
    family = compare_checkpoints(*paths, net=net)
    assert "Beside the weights a and b differ in what reaches" in family.summary
    prints = {label: member["fingerprint"] for label, member in family.to_json()["members"].items()}
    assert prints["a"] == prints["c"] != prints["b"] == prints["d"]
    assert family.to_json()["same_function"] == [] or family.to_json()["same_function"] == [["a", "c"], ["b", "d"]]
    assert balance_checkpoint(b, net=net).to_json()["fingerprint"] == prints["b"]
    assert "Tested on b.pt" in find_symmetries(b, net=net).summary
    with pytest.raises(FileError, match=r"a and b differ in .*: there is no line between these networks"):
        align_checkpoints(a, b, net=net)
    align_checkpoints(b, d, net=net, merge=0.5).write(tmp_path / "aligned")
    balance_checkpoint(b, net=net).write(tmp_path / "balanced")
    for made in (tmp_path / "aligned" / "d.pt", tmp_path / "aligned" / "merged.pt", tmp_path / "balanced" / "b.pt"):
        torch.testing.assert_close(outputs(kind, made, x), outputs(kind, b, x), rtol=1e-4, atol=1e-5)


class Chosen(Scaled):
    """Says what is between its layers."""

    between = "tanh"

    def get_extra_state(self) -> Any:
        return self.between

    def set_extra_state(self, state: Any) -> None:
        self.between = state

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(getattr(torch, self.between)(self.first(x)))
        return out


def test_the_group_is_that_of_the_loaded_network(tmp_path: Path) -> None:
    net = define(Chosen(), torch.randn(5, 4), template=Chosen)
    module = Chosen()
    module.between = "relu"
    state = module.state_dict()
    scaled = {**state, "first.weight": 2 * state["first.weight"], "first.bias": 2 * state["first.bias"]}
    scaled["second.weight"] = state["second.weight"] / 2
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", scaled)
    c = saved(tmp_path / "c.pt", {**scaled, "_extra_state": "tanh"})
    assert net.space.group_dimension == 0
    assert read_networks([a], net=net)[0].space.group_dimension == 6
    assert compare_checkpoints(a, b, net=net).to_json()["same_function"]
    apart = compare_checkpoints(b, c, net=net)
    assert "not the same: the outputs differ" in apart.summary
    assert "_extra_state 'relu' and 'tanh'" in apart.summary


class Joined(nn.Module):
    """Attention whose older files have queries, keys and values one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 3)
        self.register_load_state_dict_pre_hook(self.join)

    @staticmethod
    def join(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
        for kind in ("weight", "bias"):
            names = [f"{prefix}{part}.{kind}" for part in "qkv"]
            if names[0] in state:
                state[f"{prefix}qkv.{kind}"] = torch.cat([state.pop(name) for name in names])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(4, -1)
        out: Tensor = self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)
        return out


class Inside(nn.Module):
    """The same as a part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Joined()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.part(x)
        return out


class Turned(nn.Module):
    """Its files have a weight the other way round, under the name that it had."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        if (old := f"{prefix}kernel") in state:
            state[f"{prefix}first.weight"] = state.pop(old).T
        super()._load_from_state_dict(state, prefix, *others)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(x)))
        return out


class Normed(nn.Sequential):
    """With weight norm of today."""

    def __init__(self) -> None:
        super().__init__(weight_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))


def apart(state: State) -> State:
    """As an older file of `Joined` or `Inside` has it."""
    found = dict(state)
    for key in [key for key in state if "qkv." in key]:
        found |= {key.replace("qkv", part): t for part, t in zip("qkv", found.pop(key).chunk(3), strict=True)}
    return found


def turned(state: State) -> State:
    found = dict(state)
    return {"kernel": found.pop("first.weight").T.contiguous(), **found}


def older(state: State) -> State:
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    return {f"0.{names[key[2:]]}" if key[2:] in names else key: t for key, t in state.items()}


FORMS: list[tuple[type[nn.Module], Callable[[State], State], tuple[int, ...]]] = [
    (Joined, apart, (2, 5, 4)),
    (Inside, apart, (2, 5, 4)),
    (Turned, turned, (5, 4)),
    (Normed, older, (5, 4)),
]


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(("kind", "form", "shape"), FORMS, ids=[kind.__name__ for kind, *_ in FORMS])
def test_older_forms_are_read_and_written_as_they_are(
    kind: type[nn.Module], form: Callable[[State], State], shape: tuple[int, ...], prefix: str, tmp_path: Path
) -> None:
    net = define(kind(), torch.randn(shape), template=kind)
    state = tensors(kind, 1)
    old = {prefix + key: t for key, t in form(moved(net, state, 2)).items()}
    a, b = saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.pt", old)
    assert compare_checkpoints(a, b, net=net).to_json()["same_function"]
    near = {**old, next(iter(old)): next(iter(old.values())) * 1.01}
    assert not compare_checkpoints(a, saved(tmp_path / "c.pt", near), net=net).to_json()["same_function"]
    balance_checkpoint(b, net=net).write(tmp_path / "balanced")
    align_checkpoints(a, b, net=net).write(tmp_path / "aligned")
    x = torch.randn(shape)
    module = kind().eval()
    module.load_state_dict(state)
    expected = module(x)
    for folder in ("balanced", "aligned"):
        made = torch.load(tmp_path / folder / "b.pt", weights_only=True)
        assert list(made) == list(old)
        module.load_state_dict({key.removeprefix(prefix): t for key, t in made.items()})
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def test_sixteen_bits_stay_sixteen_bits_through_hooks(tmp_path: Path) -> None:
    net = define(Joined(), torch.randn(2, 5, 4), template=Joined)
    state = {key: t.bfloat16() for key, t in apart(tensors(Joined, 1)).items()}
    (network,) = read_networks([saved(tmp_path / "a.pt", state)], net=net)
    assert {t.dtype for t in network.values()} == {torch.bfloat16}


class Logarithms(nn.Linear):
    """Its files have the logarithms of its weight."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].exp()
        super()._load_from_state_dict(state, prefix, *others)


class Positive(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Logarithms(4, 6), nn.ReLU(), nn.Linear(6, 3))


def test_what_is_computed_is_compared_and_not_written(tmp_path: Path) -> None:
    net = define(Positive(), torch.randn(5, 4), template=Positive)
    state = tensors(Positive, 1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    other = {"0.weight": state["0.weight"][order], "0.bias": state["0.bias"][order], "2.bias": state["2.bias"]}
    other["2.weight"] = state["2.weight"][:, order]
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", other)
    assert compare_checkpoints(a, b, net=net).to_json()["same_function"]
    other["2.weight"] = other["2.weight"] * 1.01
    assert not compare_checkpoints(a, saved(tmp_path / "c.pt", other), net=net).to_json()["same_function"]
    with pytest.raises(
        FileError, match=r"computes 0\.weight from the file when it loads it.*save the state dict of the"
    ):
        balance_checkpoint(a, net=net).write(tmp_path / "out")


FACTOR = [1.0]


class Elsewhere(nn.Linear):
    """Keeps what it takes from a file where nobody looks."""

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        FACTOR[0] = float(state.pop(f"{prefix}factor"))
        super()._load_from_state_dict(state, prefix, *others)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * FACTOR[0]


class Silent(nn.Module):
    """Loads in a way of its own, and says nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def load_state_dict(self, state: Any) -> None:  # type: ignore[override]
        with torch.no_grad():
            for key, t in self.named_parameters():
                if f"net/{key}" in state:
                    t.copy_(state[f"net/{key}"])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(x)))
        return out


def test_what_goes_where_nobody_looks_is_never_equal(tmp_path: Path) -> None:
    net = define(nn.Sequential(Elsewhere(4, 3)), torch.randn(5, 4))
    state = nn.Sequential(nn.Linear(4, 3)).state_dict()
    a, b, c = (
        saved(tmp_path / f"{i}.pt", {**state, "0.factor": torch.tensor(x)}) for i, x in enumerate((1.0, 3.0, 1.0))
    )
    found = compare_checkpoints(a, b, net=net)
    assert not found.to_json()["same_function"]
    assert "0.factor 1.0 and 3.0" in found.summary
    assert compare_checkpoints(a, c, net=net).to_json()["same_function"]


def test_a_method_that_says_nothing_is_watched(tmp_path: Path) -> None:
    net = define(Silent(), torch.randn(5, 4), template=Silent)
    state = tensors(Silent, 1)
    a, b = (saved(tmp_path / f"{i}.pt", {f"net/{key}": t for key, t in moved(net, state, i).items()}) for i in range(2))
    assert compare_checkpoints(a, b, net=net).to_json()["same_function"]
    short = {f"net/{key}": t for key, t in state.items() if key != "second.weight"}
    with pytest.raises(FileError, match=r"missing are second\.weight"):
        read_networks([saved(tmp_path / "c.pt", short)], net=net)


class Failing(Scaled):
    def set_extra_state(self, state: Any) -> None:
        raise KeyError("no scale here")


class Opaque:
    """Of a class that nothing imports."""


def test_what_a_class_cannot_load_is_said(tmp_path: Path) -> None:
    def net(kind: type[nn.Module]) -> Definition:
        return define(kind(), torch.randn(5, 4), template=kind)

    state = dict(written(Scaled))
    extra = state.pop("_extra_state")
    wrong: list[tuple[type[nn.Module], dict[str, Any], str]] = [
        (Scaled, state, r"missing are _extra_state.*which the file does not have: save all of it"),
        (Failing, {**state, "_extra_state": extra}, r"Failing\.load_state_dict fails: KeyError: 'no scale here'"),
        (
            Scaled,
            {**state, "_extra_state": {"at": Opaque()}},
            r"_extra_state holds an object of the class .*Opaque.*not",
        ),
        (Scaled, {**state, "_extra_state": extra, "third.weight": torch.ones(2, 2)}, r"unexpected third\.weight"),
        (Scaled, {**state, "_extra_state": extra, "first.bias": torch.ones(2)}, r"size mismatch for first\.bias"),
    ]
    for kind, content, message in wrong:
        torch.save(content, tmp_path / "net.pt")
        with pytest.raises(FileError, match=f"(?s)net\\.pt: .*{message}"):
            read_networks([tmp_path / "net.pt"], net=net(kind))


class Versioned(nn.Linear):
    """Files of its first version have the half of its weight."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = 2 * state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, metadata, *others)


def test_versions_that_torch_keeps_in_a_file_count(tmp_path: Path) -> None:
    net = define(nn.Sequential(Versioned(4, 3)), torch.randn(5, 4))
    module = nn.Sequential(Versioned(4, 3))
    torch.save(module.state_dict(), tmp_path / "new.pt")
    torch.save(nn.DataParallel(module).state_dict(), tmp_path / "parallel.pt")
    torch.save({"0.weight": module[0].weight / 2, "0.bias": module[0].bias}, tmp_path / "old.pt")
    found = read_networks([tmp_path / f"{name}.pt" for name in ("new", "parallel", "old")], net=net)
    assert all(torch.equal(network["0.weight"], module[0].weight) for network in found)


class Slope:
    """Stands for an object that a trainer has kept, which nothing unpickles."""

    def __init__(self, slope: float) -> None:
        self.slope = slope


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"act": nn.ReLU}, {"act": nn.Tanh}, False),
        ({"act": nn.ReLU}, {"act": nn.ReLU}, True),
        ({"options": Slope(0.1)}, {"options": Slope(0.9)}, False),
        ({"options": Slope(0.1)}, {"options": Slope(0.1)}, True),
        ({"slope": torch.tensor(0.1).numpy()[()]}, {"slope": torch.tensor(0.9).numpy()[()]}, False),
        ({"slope": 0.1}, {"slope": 0.9}, False),
        ({"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 2}, True),
        (Slope(0.1), Slope(0.9), False),
    ],
    ids=["class", "the same class", "object", "an equal object", "number of numpy", "number", "training", "namespace"],
)
def test_arguments_of_a_trainer_that_nothing_takes_leave_it_open(
    one: object, other: object, same: bool, tmp_path: Path
) -> None:
    module, inputs = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(8, 3)
    paths = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    for path, arguments in zip(paths, (one, other), strict=True):
        torch.save({"state_dict": module.state_dict(), "hyper_parameters": arguments}, path)
    for said in compare_checkpoints(*paths, net=define(module, inputs)), compare_checkpoints(*paths, activation="relu"):
        assert said.results["same_function"] == same
        assert same or "not known to be the same" in said.summary
