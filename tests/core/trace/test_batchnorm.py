"""Batch norms folded into layers: the same function with fewer tensors."""

import copy

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace, fold_batchnorm


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


NETWORKS = {
    "residual": (lambda: nn.Sequential(nn.Conv2d(1, 4, 1), Block(), Block()), (1, 5, 5), 4),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)), (3,), 1),
    "grouped": (lambda: nn.Sequential(nn.Conv1d(4, 6, 2, groups=2), nn.BatchNorm1d(6), nn.ReLU()), (4, 5), 1),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 2, 2)),
        (4, 3, 3),
        1,
    ),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4)), (2, 3, 3, 3), 1),
}


def made(name: str) -> tuple[nn.Module, Tensor, int]:
    torch.manual_seed(0)
    build, shape, count = NETWORKS[name]
    module = build().double().eval()
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_()
            m.running_var.uniform_(0.1, 3)
            if m.affine:
                nn.init.normal_(m.weight)
                nn.init.normal_(m.bias)
    return module, torch.randn(3, *shape, dtype=torch.float64), count


@pytest.mark.parametrize("name", NETWORKS)
def test_the_function_stays_and_the_norms_go(name: str) -> None:
    module, x, count = made(name)
    before = copy.deepcopy(module.state_dict())
    folded = fold_batchnorm(module, x)
    torch.testing.assert_close(folded(x), module(x), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(module.state_dict()[key], value) for key, value in before.items())
    assert sum(isinstance(m, nn.Identity) for m in folded.modules()) == count
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in folded.modules())
    if name == "residual":  # a factor that was split between layer and norm is one
        full, less = WeightSpace.from_module(module, x), WeightSpace.from_module(folded, x)
        assert set(less.parameters) == {key for key, _ in folded.named_parameters()}
        assert full.group_dimension > less.group_dimension == 2 * 6


def test_a_norm_that_stands_elsewhere_stays() -> None:
    class Before(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.layer = nn.BatchNorm1d(3), nn.BatchNorm1d(4), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.layer(self.first(x))
            return self.norm(hidden) + hidden  # the layer is read twice

    with pytest.raises(ValueError, match=r"Before has no batch norm .*: nothing to fold"):
        fold_batchnorm(Before(), torch.randn(5, 3))
    with pytest.raises(ValueError, match="nothing to fold"):
        fold_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.randn(5, 2))
    shared = nn.Linear(3, 3)
    twice = nn.Sequential(shared, nn.BatchNorm1d(3), shared)
    with pytest.raises(ValueError, match="nothing to fold"):
        fold_batchnorm(twice, torch.randn(5, 3))


def test_a_norm_that_does_more_than_that_stays() -> None:
    class Activated(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    with pytest.raises(ValueError, match="nothing to fold"):
        fold_batchnorm(nn.Sequential(nn.Linear(2, 3), Activated(3)), torch.randn(5, 2))


def test_a_class_that_does_what_a_norm_does_is_folded() -> None:
    class Zero(nn.BatchNorm1d):
        def reset_parameters(self) -> None:
            super().reset_parameters()
            nn.init.zeros_(self.weight)

    net, x = nn.Sequential(nn.Linear(2, 3), Zero(3)).eval(), torch.randn(5, 2)
    with torch.no_grad():
        net[1].running_mean.normal_()
    folded = fold_batchnorm(net, x)
    assert isinstance(folded[1], nn.Identity)
    assert torch.allclose(folded(x), net(x), atol=1e-6)
