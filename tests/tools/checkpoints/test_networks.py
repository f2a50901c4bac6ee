"""Checkpoints as networks of an architecture: keys, shapes and values are checked against it, in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import mlp, saved, weights
from torch import nn
from torch.nn.utils import prune

from nfn_monomial import Symmetry
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools import align_checkpoints, compare_checkpoints
from nfn_monomial.tools.checkpoints.networks import read_networks
from nfn_monomial.tools.definitions.architectures import read_architecture
from nfn_monomial.tools.definitions.define import Definition, DefinitionError, define, read_definition
from nfn_monomial.tools.files.untrusted import FileError


@pytest.mark.parametrize(("prefix", "suffix"), [("", ".pt"), ("module.", ".safetensors"), ("net._orig_mod.", ".pt")])
def test_a_network_is_its_checkpoint(prefix: str, suffix: str, residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    path = saved(tmp_path / f"net{suffix}", {prefix + key: t for key, t in state.items()})
    (network,) = read_networks([path], net=residual)
    assert list(network) == list(residual.space.parameters)
    for name, tensor in network.items():
        assert torch.equal(tensor, state[name])
    assert network.others == {"offset": (3,), "norm.num_batches_tracked": ()}
    for key, tensor in network.module().state_dict().items():
        assert torch.equal(tensor, state[key])
    network.write(tmp_path, f"out{suffix}", {name: 2 * t for name, t in network.items()})
    (again,) = read_networks([tmp_path / f"out{suffix}"], net=residual)
    assert list(again.checkpoint) == list(network.checkpoint)
    assert torch.equal(again["stem.weight"], 2 * state["stem.weight"])


def test_averages_and_what_trainers_put_around_a_network(residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    average: nn.Module = torch.optim.swa_utils.AveragedModel(residual.template())
    average.load_state_dict({"n_averaged": torch.tensor(3), **{f"module.{key}": t for key, t in state.items()}})
    lightning = {f"model.{key}": t for key, t in state.items()} | {"criterion.weight": torch.ones(3)}
    for wrapped, prefix, beside in (
        (dict(average.state_dict()), "module.", "n_averaged"),
        (lightning, "model.", "criterion.weight"),
    ):
        path = saved(tmp_path / "net.pt", wrapped)
        (network,) = read_networks([path], net=residual)
        assert all(torch.equal(tensor, state[name]) for name, tensor in network.items())
        assert network.others["offset"] == (3,)
        assert beside in network.unread
        network.write(tmp_path / "out", "net.pt", {name: 2 * t for name, t in network.items()})
        found = torch.load(tmp_path / "out" / "net.pt", weights_only=True)
        assert torch.equal(found[beside], wrapped[beside])
        assert torch.equal(found[f"{prefix}stem.weight"], 2 * state["stem.weight"])
    both = {f"{prefix}.{key}": t for prefix in ("teacher", "student") for key, t in state.items()}
    with pytest.raises(FileError, match=r"below teacher\. and below student\. all fit this network: save the state d"):
        read_networks([saved(tmp_path / "both.pt", both)], net=residual)
    short = {key: t for key, t in lightning.items() if not key.endswith("stem.weight")}
    with pytest.raises(FileError, match=r"missing are .*stem\.weight"):
        read_networks([saved(tmp_path / "short.pt", short)], net=residual)


def test_a_network_and_its_copy_are_not_confused(residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    copy = {f"ema.{key}": t for key, t in weights(residual, 2).items()}
    for network, places in (
        (state, "in front and below ema."),
        ({**state, "criterion.weight": torch.ones(3)}, "in front and below ema."),
        ({f"net.{k}": t for k, t in {**state, "more.weight": torch.ones(3)}.items()}, "below net. and below ema."),
    ):
        with pytest.raises(FileError, match=f"the keys {places} all fit this network"):
            read_networks([saved(tmp_path / "both.pt", network | copy)], net=residual)
    for own in (1, -1):  # a tensor of the trainer with the name of one of the network, in front and behind
        wrapped = list({"offset": torch.full((3,), 7.0), **copy}.items())[::own]
        (found,) = read_networks([saved(tmp_path / "net.pt", dict(wrapped))], net=residual)
        assert torch.equal(found.unmoved["offset"], copy["ema.offset"])


@pytest.mark.parametrize("kept", [("embed.weight",), ("head.weight",), ("embed.weight", "head.weight")])
def test_tied_tensors_move_together(kept: tuple[str, ...], words: Definition, tmp_path: Path) -> None:
    state = weights(words, 1)
    tied = {"embed.weight", "head.weight"}
    path = saved(tmp_path / "net.safetensors", {k: t for k, t in state.items() if k not in tied or k in kept})
    (network,) = read_networks([path], net=words)
    network.write(tmp_path, "out.safetensors", {name: t + 1 for name, t in network.items()})
    (again,) = read_networks([tmp_path / "out.safetensors"], net=words)
    for key in kept:
        assert torch.equal(again.checkpoint[key], state[key] + 1)


def test_a_chain_of_layers_is_read_off_a_checkpoint_whatever_its_keys(tmp_path: Path) -> None:
    state = mlp(1)
    renamed = {f"layers.{key.replace('2.', '1.').replace('4.', '2.')}": t for key, t in reversed(state.items())}
    paths = [saved(tmp_path / "a.pt", state), saved(tmp_path / "b.safetensors", renamed)]
    a, b = read_networks(paths, activation="relu")
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    module.load_state_dict(state)
    x = torch.randn(7, 4)
    torch.testing.assert_close(a.module()(x), module(x))
    for name in a:
        assert torch.equal(a[name], b[name])
    symmetries = [node.symmetry for node in a.space.nodes.values() if node.permutes]
    assert symmetries == [Symmetry.SCALE, Symmetry.SCALE]


def test_chains_of_convolutions_have_a_space_and_no_module(tmp_path: Path) -> None:
    state = dict(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(24, 2)).state_dict())
    (network,) = read_networks([saved(tmp_path / "net.pt", state)], activation="relu")
    assert not network.runs
    assert network.space.group_dimension == 10
    with pytest.raises(FileError, match=r"no module runs it: strides and pools are not known .*--net module\.py"):
        network.module()


def test_other_widths_have_a_space_and_no_module(residual: Definition, tmp_path: Path) -> None:
    wide: dict[str, Any] = dict(type(residual.template())(9).state_dict())  # type: ignore[arg-type]
    (network,) = read_networks([saved(tmp_path / "net.pt", wide)], net=residual)
    assert not network.runs
    assert sorted(set(network.sizes.values())) == [3, 6, 9]


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda s: s.pop("norm.weight"), r"net\.pt: .* of another architecture than Residual: missing are norm\.w"),
    (lambda s: s.update({"extra": torch.ones(1)}), "another architecture than Residual: unexpected extra"),
    (lambda s: s.update({"norm.bias": torch.zeros(8)}), "and not of another width"),
    (lambda s: s["norm.bias"].fill_(torch.nan), r"net\.pt: norm\.bias holds NaN or infinite values"),
    (lambda s: s.update({"norm.bias": torch.ones(4).int()}), r"norm\.bias has dtype torch\.int32; floating point is"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=range(len(CHANGES)))
def test_checkpoints_of_other_networks_are_named(
    change: Callable[[dict[str, Any]], object], message: str, residual: Definition, tmp_path: Path
) -> None:
    state: dict[str, Any] = weights(residual, 1)
    change(state)
    with pytest.raises(MonomialError, match=message):
        dict(read_networks([saved(tmp_path / "net.pt", state)], net=residual)[0])


@pytest.mark.parametrize("whole", [False, True])
def test_weights_that_hooks_make_are_made_anew(whole: bool, tmp_path: Path) -> None:
    modules = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(2)]
    for module in modules:
        prune.random_unstructured(module[0], "weight", amount=0.5)
    path = tmp_path / "net.pt"
    torch.save(modules[1] if whole else modules[1].state_dict(), path)
    (network,) = read_networks([path], net=define(modules[0], torch.randn(5, 3)))
    x = torch.randn(6, 3)
    torch.testing.assert_close(network.module()(x), modules[1](x))


@pytest.mark.parametrize(
    ("dtype", "suffix"), [(torch.float8_e4m3fn, ".safetensors"), (torch.float8_e5m2, ".pt")], ids=["e4m3", "e5m2"]
)
def test_numbers_of_eight_bits_are_read_and_written_where_they_hold_what_is_written(
    dtype: torch.dtype, suffix: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    narrow = {key: (4 * t.detach()).to(dtype) for key, t in module.state_dict().items()}
    state = {key: t.double() for key, t in narrow.items()}
    net = define(module, torch.randn(8, 5))
    order = net.space.sample(scale_range=(1, 1)).act(state)  # another order
    paths = [
        saved(tmp_path / f"{i}{suffix}", {k: t.to(dtype) for k, t in s.items()}) for i, s in enumerate((state, order))
    ]
    a, b = read_networks(paths, net=net)
    assert all(torch.equal(a[key].double(), t) for key, t in state.items())
    found = align_checkpoints(*paths, net=net)
    found.write(tmp_path / "out")
    (written,) = read_networks([tmp_path / "out" / f"1{suffix}"], net=net)
    assert all(torch.equal(written[key], a[key]) for key in a)
    assert all(found.checkpoint.stored("0.weight").dtype == dtype for found in (b, written))
    factors = {"0.weight": 1.3, "0.bias": 1.3, "2.weight": 1 / 1.3}
    with pytest.raises(
        FileError, match=r"outputs would change by .* rounded to torch\.float8.*; convert it to float32"
    ):
        a.difference_as_written({key: t * factors.get(key, 1) for key, t in state.items()})
    with pytest.raises(FileError, match=r"more than torch\.float8.* holds: convert the checkpoint"):
        a.write(tmp_path, f"large{suffix}", {key: 1e6 * t for key, t in state.items()})


def test_what_is_missing_or_at_odds_is_said(residual: Definition, source: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pt", mlp(1))
    norms = saved(tmp_path / "norms.pt", weights(residual, 1))
    apart = saved(tmp_path / "apart.pt", {"a.weight": torch.randn(4, 4), "b.weight": torch.randn(4, 5)})
    adapter = saved(tmp_path / "adapter_model.safetensors", {"base_model.model.q.lora_A.weight": torch.randn(2, 4)})
    (tmp_path / "link.pt").symlink_to(path)
    wrong: list[tuple[list[Path], dict[str, Any], str]] = [
        ([path], {}, r"say what network it is by --net .*--activation relu is enough"),
        ([path], {"net": f"{source}:Residual", "activation": "relu"}, "is for a chain of layers, but --net"),
        (
            [adapter],
            {},
            r"lora_A\.weight, expected pairs .* put the adapter into its base by model\.merge_and_unload\(\)",
        ),
        (
            [path],
            {"net": read_definition(f"{source}:Residual"), "net_args": "a=1"},
            "these are for a class or function",
        ),
        ([path], {"net": f"{source}:Residual", "input_shape": (3, 0, 7)}, "sizes are at least 1"),
        ([path], {"activation": "nonsense"}, "nonsense"),
        ([path], {"activation": "relu", "input_shape": (3, 5)}, r"--input 3,5: .* reads 4 inputs"),
        ([path, tmp_path / "link.pt"], {"activation": "relu"}, "are the same file: give two networks"),
        ([norms], {"activation": "relu"}, r"norm\.running_mean \(4,\).*: no chain of layers .*--net"),
        (
            [apart],
            {"activation": "relu"},
            r"b\.weight \(4, 5\) does not fit after a\.weight .*--order a,b; or .*--net",
        ),
    ]
    for paths, naming, message in wrong:
        with pytest.raises(InvalidValueError, match=message):
            read_networks(paths, **naming)
    with pytest.raises(InvalidValueError, match="which network"):
        read_architecture(None)
    with pytest.raises(DefinitionError, match="fails: RuntimeError: no such disk"):
        read_architecture(None, net=f"{source}:fails")


WIDE = {"first": (6, 4), "second": (3, 6)}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a mean that is NaN": ({"deviation": torch.full((4,), torch.nan)}, "outputs of Pruned hold NaN"),
    "an order past the end": ({"order": torch.tensor([0, 1, 2, 9])}, "Pruned does not run on its example inputs"),
    "an overflow": ({f"{name}.weight": torch.full(shape, 1e38) for name, shape in WIDE.items()}, "outputs of Pruned"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("second", [False, True])
def test_of_two_files_the_one_to_blame_is_named(fault: str, second: bool, pruned: Definition, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    paths = [saved(tmp_path / "good.pt", weights(pruned, 1)), saved(tmp_path / "bad.pt", weights(pruned, 2) | change)]
    x, y = torch.ones(3, 4), torch.arange(3)
    for command, options in ((compare_checkpoints, {}), (align_checkpoints, {"data": lambda: (x, y)})):
        if fault == "an overflow" and command is compare_checkpoints:
            continue  # which computes in float64
        if "order" in change and command is align_checkpoints:
            continue  # which says of what there is no line
        with pytest.raises(FileError, match=rf"bad\.pt: {message}"):
            command(*paths[:: -1 if second else 1], net=pruned, **options)  # type: ignore[operator]


def test_a_buffer_of_another_shape_is_one_of_another_width(pruned: Definition, tmp_path: Path) -> None:
    paths = [saved(tmp_path / "a.pt", weights(pruned, 1)), saved(tmp_path / "b.pt", weights(pruned, 1))]
    torch.save(weights(pruned, 1) | {"deviation": torch.ones(5)}, paths[1])
    found = compare_checkpoints(*paths, net=pruned)
    assert not found.results["same_function"]
    assert "Tensors that no symmetry moves differ, too: deviation" in found.summary
    with pytest.raises(FileError, match=r"a and b differ in deviation, .* or of two shapes: there is no line"):
        align_checkpoints(*paths, net=pruned)


def test_other_vocabularies_and_heads_have_a_way_out(words: Definition, tmp_path: Path) -> None:
    state = weights(words, 1)
    longer = state | {key: torch.ones(9, 4) for key in ("embed.weight", "head.weight")}
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", longer)
    with pytest.raises(FileError, match=r"9 and 7 are the sizes of two vocabularies, .* as embed\.weight\[:7\]"):
        read_networks([a, b], net=words)

    class Untied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lm_head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.lm_head(self.embed(x).relu())
            return out

    alone = saved(tmp_path / "c.pt", {"embed.weight": torch.ones(7, 4)})
    with pytest.raises(FileError, match=r"missing are lm_head\.weight\. .* if it is tied to the embedding, say so"):
        read_networks([alone], net=define(Untied(), torch.tensor([[1, 2]])))


def test_a_number_in_place_of_a_vector_is_named(tmp_path: Path) -> None:
    state = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)).state_dict() | {"0.bias": torch.tensor(1.0)}
    path = saved(tmp_path / "a.pt", state)
    with pytest.raises(FileError, match=r"0\.bias"):
        read_networks([path], net=define(nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)), torch.randn(4, 3)))
