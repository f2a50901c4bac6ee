"""Networks that sort, look up, transform, standardise and sample: experts, state spaces, neural operators."""

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian
from torch import Tensor, nn


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


class GatheredExperts(nn.Module):
    """Experts stacked in one tensor, of which each input looks up two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(2, 3)
        self.up, self.down, self.head = zeros(3, 4, 2), zeros(3, 5, 4), nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        hidden = torch.einsum("bkhi,bi->bkh", self.up[chosen], x).relu()
        return self.head(torch.einsum("bk,bkoh,bkh->bo", weights, self.down[chosen], hidden))


class Standardised(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1, with a gain (Brock et al. 2021)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 2)
        self.gain, self.eps = nn.Parameter(torch.ones(outputs, 1, 1, 1)), 1e-3

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.flatten(1)
        variance, mean = torch.var_mean(rows, 1, keepdim=True)
        rows = (rows - mean) / (variance + self.eps).sqrt()
        return F.conv2d(x, rows.view_as(self.weight) * self.gain, self.bias)


class Neural(nn.Module):
    """A layer of a Fourier neural operator (Li et al. 2021), its complex weights as pairs of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.beside, self.project = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 5, 1), nn.Conv1d(5, 6, 1)
        self.modes = zeros(5, 4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        low = torch.fft.rfft(x)[..., :3]
        mixed = torch.einsum("bax,oax->box", low, torch.view_as_complex(self.modes))
        return self.project(F.gelu(torch.fft.irfft(mixed, n=x.shape[-1]) + self.beside(x)))


class Diagonal(nn.Module):
    """A diagonal state space (S4D, Gu et al. 2022), its kernel applied as a product of frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(2, 4, 1), nn.Conv1d(4, 5, 1)
        self.step, self.decay, self.turn = zeros(4), zeros(4, 3), zeros(4, 3)
        self.out, self.skip = zeros(4, 3, 2), zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        x, length = self.enter(x), x.shape[-1]
        poles = torch.complex(-self.decay.exp(), self.turn) * self.step.exp()[:, None]
        powers = torch.exp(poles[..., None] * torch.arange(length, dtype=x.dtype))
        kernel = 2 * torch.einsum("hn,hnl->hl", torch.view_as_complex(self.out) * (poles.exp() - 1), powers).real
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length))
        return self.leave(F.gelu(y[..., :length] + x * self.skip[:, None]))


class Unpooled(nn.Module):
    """An encoder that remembers where the largest entries were, and a decoder that puts them back there (SegNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inside = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 5, 1)
        self.up, self.leave = nn.Conv2d(5, 4, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled, places = F.max_pool2d(self.down(x).relu(), 2, return_indices=True)
        return self.leave(F.max_unpool2d(self.up(self.inside(pooled).relu()), places, 2))


class Aligned(nn.Module):
    """A spatial transformer (Jaderberg et al. 2015): features are looked at where another network says."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.where, self.features = nn.Conv2d(1, 4, 2), nn.Linear(4, 6), nn.Conv2d(1, 5, 2)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        motion = self.where(self.look(x).relu().mean((2, 3))).view(-1, 2, 3)
        features = self.features(x)
        grid = F.affine_grid(motion, list(features.shape), align_corners=False)
        return self.head(F.grid_sample(features, grid, align_corners=False).relu().mean((2, 3)))


def spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 4)), nn.ReLU(), nn.Linear(4, 3))


class Headless(nn.Module):
    """A block that returns its stream, which a norm's gain and a bias lie along."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up, self.down = nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 4)
        self.gain, self.eps = nn.Parameter(torch.ones(4)), 1e-3

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return x + self.down(self.up(F.rms_norm(x, (4,), self.gain, self.eps)).relu())


NETWORKS = (
    Network(
        "experts_gathered",
        GatheredExperts,
        gaussian((16, 2)),
        {"E": Items(3), "h": Items(4, 1, 0, "E"), "o": Items(5, 1, 1)},
        {"router.weight": "E 2", "router.bias": "E", "up": "E h 2", "down": "E o h"},
        optional=8,
        note="which expert a row belongs to is in its values: the neurons of all experts move together",
        other=gaussian((7, 2)),
    ),
    Network(
        "weight_standardised",
        lambda: nn.Sequential(
            Standardised(1, 4), nn.ReLU(), Standardised(4, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(5, 3),
        ),
        gaussian((12, 1, 4, 4)),
        {"a": Items(4, 0, 1), "b": Items(5, 1, 1)},
        constants=1,
        other=gaussian((2, 1, 5, 6)),
    ),
    Network(
        "fourier_operator",
        Neural,
        gaussian((12, 1, 8)),
        {"a": Items(4, 1, 1), "b": Items(5)},
        {"modes": "b a 3 2"},
        dead=20,
        other=gaussian((2, 1, 11)),
    ),
    Network(
        "state_space",
        Diagonal,
        gaussian((12, 2, 7)),
        {"h": Items(4, 1, 1), "n": Items(3, parent="h")},
        {"enter.weight": "h 2 1", "enter.bias": "h", "leave.weight": "5 h 1", "step": "h", "decay": "h n",
         "turn": "h n", "out": "h n 2", "skip": "h"},
        other=gaussian((2, 2, 10)),
    ),
    Network(
        "unpooled",
        Unpooled,
        gaussian((12, 1, 4, 4)),
        {"a": Items(4, 2, 1), "b": Items(5, 1)},
        other=gaussian((2, 1, 6, 4)),
    ),
    Network(
        "spatial_transformer",
        Aligned,
        gaussian((12, 1, 4, 4)),
        {"a": Items(4, 1), "b": Items(5, 1)},
        other=gaussian((2, 1, 6, 5)),
    ),
    Network(
        "spectral_norm",
        spectral,
        gaussian((12, 2)),
        {"a": Items(4, 1)},
        {"0.parametrizations.weight.0._u": "a"},
        constants=1,
        extra=1,
        note="the buffer along no neurons has a scale of its own",
    ),
    Network(
        "headless",
        Headless,
        gaussian((12, 2)),
        {"b": Items(5, 1)},
        {"enter.weight": "4 2", "enter.bias": "4", "up.weight": "b 4", "down.weight": "4 b", "down.bias": "4",
         "gain": "4"},
        entries=4,
        other=gaussian((3, 5, 2)),
    ),
)  # fmt: skip
