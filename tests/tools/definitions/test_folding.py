"""Networks whose batch norms were folded into the layers before them, against those that they were made from."""

import copy
from pathlib import Path

import pytest
import torch
from own_networks import State, moved, saved
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from nfn_monomial.running import answers
from nfn_monomial.tools import align_checkpoints, balance_checkpoint, compare_checkpoints
from nfn_monomial.tools.definitions.define import define
from nfn_monomial.tools.definitions.folding import folded, folds_of, unfused
from nfn_monomial.tools.files.untrusted import FileError


class Net(nn.Module):
    """Convolutions with batch norms behind them, one of which has a bias of its own, and a linear layer with one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.second, self.other = nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, eps=1e-3)
        self.third, self.last = nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, affine=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.other(self.second(x))).mean((2, 3))
        out: Tensor = self.head(torch.relu(self.last(self.third(x))))
        return out


def trained(seed: int) -> Net:
    torch.manual_seed(seed)
    module = Net().eval()
    with torch.no_grad():
        for key, t in (*module.named_parameters(), *module.named_buffers()):
            if t.is_floating_point():
                t.copy_(torch.rand_like(t) + 0.5 if "var" in key or "norm.weight" in key else torch.randn_like(t))
    return module


def fused(module: Net) -> State:
    """As a package for inference writes it."""
    network = copy.deepcopy(module)
    network.first = fuse_conv_bn_eval(network.first, network.norm)
    network.second = fuse_conv_bn_eval(network.second, network.other)
    affine = nn.BatchNorm1d(5)
    affine.load_state_dict(network.last.state_dict(), strict=False)
    network.third = fuse_linear_bn_eval(network.third, affine.eval())
    network.norm = network.other = network.last = nn.Identity()  # type: ignore[assignment]
    return dict(network.state_dict())


def test_fused_networks_are_compared_with_what_they_were_made_from(tmp_path: Path) -> None:
    module = trained(0)
    x = torch.randn(5, 1, 8, 8)
    net = define(module, x)
    assert [(fold.layer, fold.norm) for fold in folds_of(module, (x,))] == [
        ("first", "norm"),
        ("second", "other"),
        ("third", "last"),
    ]
    state = dict(module.state_dict())
    other = moved(net, state, 1)
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", other)
    again = Net().eval()
    again.load_state_dict(other)
    c, d = saved(tmp_path / "c.pt", fused(module)), saved(tmp_path / "d.pt", fused(again))
    assert set(torch.load(c, weights_only=True)) == {
        f"{layer}.{kind}" for layer in ("first", "second", "third", "head") for kind in ("weight", "bias")
    }
    for pair in ((a, c), (c, a), (c, d), (b, c)):
        comparison = compare_checkpoints(*pair, net=net)
        words = comparison.summary.splitlines()[0]
        assert "the same function" in words or "within the rounding of float32" in words
        assert "once batch norms are folded" in words
    near = fused(module)
    near["first.bias"][2] += 1e-2
    changed = compare_checkpoints(a, saved(tmp_path / "e.pt", near), net=net)
    assert not changed.to_json()["same_function"]
    assert "not the same: the outputs differ" in changed.summary
    for command in (lambda: balance_checkpoint(c, net=net), lambda: align_checkpoints(a, c, net=net)):
        with pytest.raises(FileError, match=r"missing are .*norm"):
            command()


def test_files_with_batch_norms_of_a_fused_network_have_a_way_out(tmp_path: Path) -> None:
    net = define(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()), torch.ones(2, 1, 5, 5))
    state = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).state_dict()
    paths = [saved(tmp_path / f"{i}.pt", state) for i in range(2)]
    with pytest.raises(FileError, match=r"1\.running_mean is of batch norm, which the network does not have: if it is"):
        compare_checkpoints(*paths, net=net)


def test_a_layer_that_something_else_reads_is_not_folded() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.layer(x)
            return hidden + self.norm(hidden)

    assert folds_of(Beside(), (torch.randn(5, 3),)) == []


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_are_folded_and_unfolded(groups: int) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=groups), nn.BatchNorm2d(6), nn.ReLU()).eval()
    state = {key: torch.rand_like(t) + 0.5 for key, t in module.state_dict().items() if t.is_floating_point()}
    x = torch.randn(2, 4, 3, 3)
    folds = folds_of(module, (x,))
    (before,) = answers(module, state, x)
    (after,) = answers(module, folded(state, folds), x)
    torch.testing.assert_close(after, before)
    layers = {key: t for key, t in folded(state, folds).items() if key.startswith("0")}
    (again,) = answers(module, unfused(layers, folds) or {}, x)
    torch.testing.assert_close(again, before)
