"""Convolutional networks without normalisation, and those of one kind of layer each."""

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian
from torch import Tensor, nn


def relu(size: int) -> Items:
    return Items(size, scales=1)


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 2)
        self.fc1, self.fc2 = nn.Linear(5 * 4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers, width = [], 2
        for size in (4, 5, "M", 6):
            if size == "M":
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(width, size, (3, 1), padding=(1, 0)), nn.ReLU(inplace=True)]
                width = size
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(nn.Linear(6, 7), nn.ReLU(True), nn.Dropout(), nn.Linear(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class PlainResNet(nn.Module):
    """Residual blocks without normalisation, ReLU on the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.a = nn.ModuleList(nn.Conv2d(4, n, (1, 3), padding=(0, 1)) for n in (5, 6))
        self.b = nn.ModuleList(nn.Conv2d(n, 4, 1, bias=False) for n in (5, 6))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for a, b in zip(self.a, self.b, strict=True):
            x = (x + b(a(x).relu())).relu()
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 5, (1, 3), padding=(0, 1))
        self.up = nn.ConvTranspose2d(5, 6, 2, stride=2)
        self.merge, self.out = nn.Conv2d(10, 7, 1), nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down1(x))
        deep = F.relu(self.down2(F.max_pool2d(skip, 2)))
        return self.out(F.relu(self.merge(torch.cat([skip, self.up(deep)], dim=1))))


class UpsamplingUNet(nn.Module):
    """Average pooling down, interpolation up; the skip is the second part of the concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 5, 1)
        self.dec, self.out = nn.Conv2d(9, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.tanh(self.enc(x))
        deep = torch.tanh(self.mid(F.avg_pool2d(skip, 2)))
        deep = F.interpolate(deep, scale_factor=2, mode="nearest")
        return self.out(F.leaky_relu(self.dec(torch.cat((deep, skip), 1)), 0.1))


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, 16, 1), nn.Conv2d(4, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pixel_shuffle(self.conv2(F.relu(self.conv1(x))), 2)
        return self.conv3(F.relu(x))


class SpaceToDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(1, 5, 1), nn.Conv2d(20, 6, 1), nn.Conv2d(6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pixel_unshuffle(torch.tanh(self.first(x)), 2)
        return self.third(torch.relu(self.second(x)))


class TCN(nn.Module):
    """Dilated causal convolutions with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv1d(2, 4, 1)
        self.first = nn.ModuleList(nn.Conv1d(4, n, 2, dilation=d) for n, d in ((5, 1), (6, 2)))
        self.second = nn.ModuleList(nn.Conv1d(n, 4, 2, dilation=d) for n, d in ((5, 1), (6, 2)))
        self.head = nn.Conv1d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        for i, (a, b) in enumerate(zip(self.first, self.second, strict=True)):
            y = F.relu(a(F.pad(x, (2**i, 0))))
            x = x + b(F.pad(y, (2**i, 0)))
        return self.head(x)[:, :, -1]


class ResNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reduce = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 1)
        self.grouped, self.expand = nn.Conv2d(6, 10, (1, 3), padding=(0, 1), groups=2), nn.Conv2d(10, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.expand(F.relu(self.grouped(F.relu(self.reduce(x))))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(1, 5, 3), nn.Linear(5, 4), nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean(dim=(-2, -1))))))
        return self.head((x * gate[:, :, None, None]).mean((2, 3)))


def pointwise_depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.Flatten(2)
    )


def convolution_3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 2), nn.Tanh(), nn.AvgPool3d(2), nn.Conv3d(4, 5, 1), nn.ELU(), nn.Flatten(), nn.Linear(5 * 8, 2)
    )


def convolution_1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), nn.LeakyReLU(0.2), nn.MaxPool1d(2),
        nn.ConvTranspose1d(4, 5, 2), nn.Softsign(), nn.ConstantPad1d(1, 0.0), nn.Conv1d(5, 3, 2),
    )  # fmt: skip


NETWORKS = [
    Network(
        "lenet", LeNet, gaussian((8, 1, 8, 8)), {"a": relu(4), "b": relu(5), "c": relu(6)}, {"fc1.weight": "c b*4"}
    ),
    Network("vgg", VGG, gaussian((8, 2, 6, 6)), {n: relu(n_) for n, n_ in (("a", 4), ("b", 5), ("c", 6), ("d", 7))}),
    Network("resnet_plain", PlainResNet, gaussian((8, 2, 6, 6)), {"e": relu(4), "h1": relu(5), "h2": relu(6)}),
    Network(
        "unet",
        UNet,
        gaussian((6, 1, 6, 6)),
        {"a": relu(4), "b": relu(5), "up": Items(6, 1, 1), "c": relu(7)},
        {"merge.weight": "c a+up 1 1", "up.weight": "b up 2 2"},
    ),
    Network(
        "unet_upsampling",
        UpsamplingUNet,
        gaussian((4, 1, 6, 6)),
        {"a": Items(4, 0, 1), "b": Items(5, 0, 1), "c": relu(6)},
        {"dec.weight": "c b+a 1 1"},
    ),
    Network(
        "super_resolution",
        SuperResolution,
        gaussian((2, 1, 5, 5)),
        {"a": relu(5), "b": relu(4)},
        {"conv2.weight": "b*4 a 1 1", "conv2.bias": "b*4"},
    ),
    Network(
        "pixel_unshuffle",
        SpaceToDepth,
        gaussian((4, 1, 6, 6)),
        {"a": Items(5, 0, 1), "b": relu(6)},
        {"second.weight": "b a*4 1 1"},
    ),
    Network("convolution_1d", convolution_1d, gaussian((8, 2, 8)), {"a": relu(4), "b": Items(5, 0, 1)}),
    Network(
        "convolution_3d",
        convolution_3d,
        gaussian((8, 1, 5, 5, 5)),
        {"a": Items(4, 0, 1), "b": Items(5)},
        {"6.weight": "2 b*8"},
    ),
    Network("tcn", TCN, gaussian((8, 2, 8)), {"e": Items(4, 1, 1), "h1": relu(5), "h2": relu(6)}),
    Network("pointwise_depthwise", pointwise_depthwise, gaussian((4, 2, 6, 6)), {"a": Items(4, 2, 0)}),
    Network(
        "resnext",
        ResNeXt,
        gaussian((8, 1, 6, 6)),
        {"e": relu(4), "G": Items(2), "i": Items(3, 1, 0, "G"), "o": Items(5, 1, 0, "G")},
        {
            "reduce.weight": "G*i e 1 1",
            "reduce.bias": "G*i",
            "grouped.weight": "G*o i 1 3",
            "grouped.bias": "G*o",
            "expand.weight": "e G*o 1 1",
        },
    ),
    Network("squeeze_excite", SqueezeExcite, gaussian((8, 1, 6, 6)), {"a": relu(5), "r": relu(4)}),
]
