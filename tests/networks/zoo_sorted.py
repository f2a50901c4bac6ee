"""Networks that sort, look up, transform, standardise and sample: experts, state spaces, neural operators."""

import torch
import torch.nn.functional as F
from networks.zoo import Items, gaussian, group, net, zeros
from torch import Tensor, nn


@group(
    {"E": Items(3), "h": Items(4, 1, 0, "E"), "o": Items(5, 1, 1)},
    {"router": "E 2", "up": "E h 2", "down": "E o h"},
    optional=8,
    note="which expert a row belongs to is in its values: the neurons of all experts move together",
    other=gaussian((7, 2)),
)
@net(gaussian((16, 2)), router=nn.Linear(2, 3), up=zeros(3, 4, 2), down=zeros(3, 5, 4), head=nn.Linear(5, 6))
def experts_gathered(m, x):
    """Experts stacked in one tensor, of which each input looks up two."""
    weights, chosen = m.router(x).softmax(-1).topk(2)
    hidden = torch.einsum("bkhi,bi->bkh", m.up[chosen], x).relu()
    return m.head(torch.einsum("bk,bkoh,bkh->bo", weights, m.down[chosen], hidden))


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


STANDARDISED = nn.Sequential(
    Standardised(1, 4), nn.ReLU(), Standardised(4, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)
)
group({"a": Items(4, 0, 1), "b": Items(5, 1, 1)}, constants=1, other=gaussian((2, 1, 5, 6)))(
    ("weight_standardised", STANDARDISED, gaussian((12, 1, 4, 4)))
)


@group({"a": Items(4, 1, 1), "b": Items(5)}, {"modes": "b a"}, dead=20, other=gaussian((2, 1, 11)))
@net(
    gaussian((12, 1, 8)),
    lift=nn.Conv1d(1, 4, 1), beside=nn.Conv1d(4, 5, 1), project=nn.Conv1d(5, 6, 1), modes=zeros(5, 4, 3, 2),
)  # fmt: skip
def fourier_operator(m, x):
    """A layer of a Fourier neural operator (Li et al. 2021), its complex weights as pairs of real ones."""
    x = m.lift(x)
    low = torch.fft.rfft(x)[..., :3]
    mixed = torch.einsum("bax,oax->box", low, torch.view_as_complex(m.modes))
    return m.project(F.gelu(torch.fft.irfft(mixed, n=x.shape[-1]) + m.beside(x)))


@group(
    {"h": Items(4, 1, 1), "n": Items(3, parent="h")},
    {"enter": "h 2", "leave": "5 h", "step": "h", "decay": "h n", "turn": "h n", "out": "h n", "skip": "h"},
    other=gaussian((2, 2, 10)),
)
@net(
    gaussian((12, 2, 7)),
    enter=nn.Conv1d(2, 4, 1), leave=nn.Conv1d(4, 5, 1), step=zeros(4), decay=zeros(4, 3), turn=zeros(4, 3),
    out=zeros(4, 3, 2), skip=zeros(4),
)  # fmt: skip
def state_space(m, x):
    """A diagonal state space (S4D, Gu et al. 2022), its kernel applied as a product of frequencies."""
    x, length = m.enter(x), x.shape[-1]
    poles = torch.complex(-m.decay.exp(), m.turn) * m.step.exp()[:, None]
    powers = torch.exp(poles[..., None] * torch.arange(length, dtype=x.dtype))
    kernel = 2 * torch.einsum("hn,hnl->hl", torch.view_as_complex(m.out) * (poles.exp() - 1), powers).real
    y = torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length))
    return m.leave(F.gelu(y[..., :length] + x * m.skip[:, None]))


@group({"a": Items(4, 2, 1), "b": Items(5, 1)}, other=gaussian((2, 1, 6, 4)))
@net(
    gaussian((12, 1, 4, 4)),
    down=nn.Conv2d(1, 4, 3, padding=1), inside=nn.Conv2d(4, 5, 1), up=nn.Conv2d(5, 4, 1), leave=nn.Conv2d(4, 3, 1),
)  # fmt: skip
def unpooled(m, x):
    """An encoder that remembers where the largest entries were, and a decoder that puts them back there (SegNet)."""
    pooled, places = F.max_pool2d(m.down(x).relu(), 2, return_indices=True)
    return m.leave(F.max_unpool2d(m.up(m.inside(pooled).relu()), places, 2))


@group({"a": Items(4, 1), "b": Items(5, 1)}, other=gaussian((2, 1, 6, 5)))
@net(
    gaussian((12, 1, 4, 4)),
    look=nn.Conv2d(1, 4, 2), where=nn.Linear(4, 6), features=nn.Conv2d(1, 5, 2), head=nn.Linear(5, 3),
)  # fmt: skip
def spatial_transformer(m, x):
    """A spatial transformer (Jaderberg et al. 2015): features are looked at where another network says."""
    motion = m.where(m.look(x).relu().mean((2, 3))).view(-1, 2, 3)
    features = m.features(x)
    grid = F.affine_grid(motion, list(features.shape), align_corners=False)
    return m.head(F.grid_sample(features, grid, align_corners=False).relu().mean((2, 3)))


SPECTRAL = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 4)), nn.ReLU(), nn.Linear(4, 3))
group(
    {"a": Items(4, 1)},
    {"0.parametrizations.weight.0._u": "a"},
    constants=1,
    extra=1,
    note="the buffer along no neurons has a scale of its own",
)(("spectral_norm", SPECTRAL, gaussian((12, 2))))


@group(
    {"b": Items(5, 1)}, {"enter": "4 2", "up": "b 4", "down": "4 b", "gain": "4"}, entries=4, other=gaussian((3, 5, 2))
)
@net(
    gaussian((12, 2)),
    enter=nn.Linear(2, 4), up=nn.Linear(4, 5), down=nn.Linear(5, 4), gain=nn.Parameter(torch.ones(4)), eps=1e-3,
)  # fmt: skip
def headless(m, x):
    """A block that returns its stream, which a norm's gain and a bias lie along."""
    x = m.enter(x)
    return x + m.down(m.up(F.rms_norm(x, (4,), m.gain, m.eps)).relu())
