"""Networks with normalisation: what eps breaks in front of it, and the gauges of gain and shift behind it.

A batch norm in eval mode is affine, with eps beside the running variance alone. So every channel has a scale and a sign
in front of it: charge +1 on what writes its input and on the running mean, -1 on the gain.
"""

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

COLUMN, ROW = ((3, 1), (1, 0)), ((1, 3), (0, 1))


def conv_bn(
    inputs: int, outputs: int, kernel: int | tuple[int, int] = 1, padding: int | tuple[int, int] = 0, **more: int
):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False, **more), nn.BatchNorm2d(outputs)
    )


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, hidden, *_kernel(COLUMN), bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, outputs, *_kernel(ROW), bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None if inputs == outputs else conv_bn(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return F.relu(out)


def _kernel(shape: tuple[tuple[int, int], tuple[int, int]]) -> tuple[tuple[int, int], int, tuple[int, int]]:
    return shape[0], 1, shape[1]


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.layer1, self.layer2 = BasicBlock(4, 5, 4), BasicBlock(4, 7, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=1, padding=1)
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class ResNet50(nn.Module):
    """One bottleneck behind a stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reduce, self.expand = conv_bn(2, 4, 2), conv_bn(4, 5), conv_bn(6, 4)
        self.middle, self.fc = conv_bn(5, 6, *COLUMN), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.middle(self.reduce(x).relu_()).relu_()
        return self.fc((x + self.expand(y)).relu().mean((2, 3)))


class PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 2, bias=False)
        self.bn1, self.conv1 = nn.BatchNorm2d(4), nn.Conv2d(4, 5, *_kernel(COLUMN), bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(5), nn.Conv2d(5, 4, 1, bias=False)
        self.bn, self.fc = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 2, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, m, 1, bias=False)) for n, m in ((4, 5), (9, 6))
        )
        self.norm, self.classifier = nn.BatchNorm2d(15), nn.Linear(15, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.classifier(F.relu(self.norm(torch.cat(features, 1))).mean(dim=[2, 3]))


class MobileNetV2(nn.Module):
    """The second block is a residual on a stream that no activation touches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.project0 = conv_bn(1, 5, 2), conv_bn(5, 4)
        self.expand, self.depthwise = conv_bn(4, 6), conv_bn(6, 6, 3, 1, groups=6)
        self.project, self.last, self.classifier = conv_bn(6, 4), conv_bn(4, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project0(F.relu6(self.stem(x)))
        x = x + self.project(F.relu6(self.depthwise(F.relu6(self.expand(x)))))
        return self.classifier(F.relu6(self.last(x)).mean([2, 3]))


class MobileNetV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.expand, self.depthwise = conv_bn(1, 4, 2), conv_bn(4, 5), conv_bn(5, 5, 3, 1, groups=5)
        self.fc1, self.fc2 = nn.Conv2d(5, 6, 1), nn.Conv2d(6, 5, 1)
        self.project, self.head = conv_bn(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        y = self.depthwise(F.hardswish(self.expand(x)))
        scale = F.hardsigmoid(self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(y, 1)))))
        return self.head((x + self.project(F.hardswish(scale * y))).mean((-1, -2)))


class EfficientNet(nn.Module):
    """MBConv with SiLU and squeeze-excite on a stream that begins without activation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.expand, self.depthwise = conv_bn(1, 4, 2), conv_bn(4, 5), conv_bn(5, 5, 3, 1, groups=5)
        self.squeeze, self.excite = nn.Linear(5, 6), nn.Linear(6, 5)
        self.project, self.head = conv_bn(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.silu(self.depthwise(F.silu(self.expand(x))))
        gate = self.excite(F.silu(self.squeeze(y.mean((2, 3))))).sigmoid()
        return self.head((x + self.project(y * gate[..., None, None])).mean((2, 3)))


class ShuffleNet(nn.Module):
    """Grouped 1x1 convolutions with a shuffle of channels between them, depthwise in the middle; batch norms folded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1 = nn.Conv2d(1, 6, 2), nn.Conv2d(6, 4, 1, groups=2)
        self.depthwise, self.conv2 = nn.Conv2d(4, 4, (3, 1), groups=4), nn.Conv2d(4, 10, 1, groups=2)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(F.relu(self.stem(x))))
        b, c, h, w = y.shape
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
        return self.head(F.relu(self.conv2(self.depthwise(y))).mean((2, 3)))


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.dwconv, self.norm = nn.Conv2d(1, 4, 2), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.LayerNorm(4)
        self.pwconv1, self.pwconv2, self.gamma = nn.Linear(4, 5), nn.Linear(5, 4), nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).permute(0, 3, 1, 2)
        return self.head((x + y).mean((2, 3)))


class WeightNorm(nn.Module):
    """A gain of a direction per row: the columns of a normalised direction have no scale, the rows of it have one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = weight_norm(nn.Linear(2, 4)), weight_norm(nn.Linear(4, 5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.second(F.relu(self.first(x)))))


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), nn.Tanh(),
        nn.Flatten(), nn.Dropout(), nn.Linear(5 * 9, 2),
    )  # fmt: skip


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 2), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(), nn.Conv2d(4, 5, 2), nn.SELU(),
        nn.Conv2d(5, 2, 1),
    )  # fmt: skip


def layer_norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


NETWORKS = [
    Network(
        "resnet18",
        ResNet18,
        gaussian((8, 2, 6, 6)),
        {"e1": Items(4, 3, 2), "h1": Items(5, 2, 1), "e2": Items(6, 3, 2), "h2": Items(7, 2, 1)},
    ),
    Network(
        "resnet50", ResNet50, gaussian((8, 2, 5, 5)), {"e": Items(4, 3, 2), "h1": Items(5, 2, 1), "h2": Items(6, 2, 1)}
    ),
    Network("resnet_preactivation", PreActivation, gaussian((8, 2, 5, 5)), {"e": Items(4, 3, 1), "h": Items(5, 2, 1)}),
    Network(
        "densenet",
        DenseNet,
        gaussian((8, 2, 4, 4)),
        {"a": Items(4, 4, 1), "b": Items(5, 3, 1), "c": Items(6, 2, 1)},
        {
            "layers.1.0.*": "a+b",
            "layers.1.2.weight": "c a+b 1 1",
            "norm.*": "a+b+c",
            "classifier.weight": "2 a+b+c",
        },
    ),
    Network(
        "mobilenet_v2",
        MobileNetV2,
        gaussian((8, 1, 5, 5), deviation=8.0),
        {"e": Items(4, 3, 3), "a": Items(5, 1, 1), "h": Items(6, 2, 2), "b": Items(7, 1, 1)},
    ),
    Network(
        "mobilenet_v3",
        MobileNetV3,
        gaussian((8, 1, 5, 5)),
        {"e": Items(4, 2, 2), "h": Items(5, 2, 2), "r": Items(6, 1)},
    ),
    Network(
        "efficientnet", EfficientNet, gaussian((8, 1, 5, 5)), {"e": Items(4, 3, 3), "h": Items(5, 2, 2), "r": Items(6)}
    ),
    Network(
        "shufflenet",
        ShuffleNet,
        gaussian((8, 1, 5, 5)),
        {"G": Items(2, 2, 1), "J": Items(2, 2, 1), "e": Items(3, 1, 0, "G"), "o": Items(5, 1, 0, "J")},
        {
            "stem.weight": "G*e 1 2 2",
            "stem.bias": "G*e",
            "conv1.weight": "G*J e 1 1",
            "conv1.bias": "G*J",
            "depthwise.weight": "J*G 1 3 1",
            "depthwise.bias": "J*G",
            "conv2.weight": "J*o G 1 1",
            "conv2.bias": "J*o",
            "head.weight": "3 J*o",
        },
        note="the gauges of four channels, pairs of G and J, are as many as those of G and of J, which overlap",
    ),
    Network("convnext", ConvNeXt, gaussian((8, 1, 5, 5)), {"e": Items(4, 3, 3), "h": Items(5)}),
    Network("weight_norm", WeightNorm, gaussian((12, 2)), {"a": Items(4, 1, 1), "b": Items(5, 2, 1)}, constants=1),
    Network(
        "batch_norm",
        batch_norm,
        gaussian((8, 2, 4, 4)),
        {"a": Items(4, 2, 1), "b": Items(5, 1, 2)},
        {"8.weight": "2 b*9"},
    ),
    Network(
        "group_norm",
        group_norm,
        gaussian((8, 1, 4, 4)),
        {"G": Items(2, 0, 1), "c": Items(3, 1, 0, "G"), "b": Items(5, 1)},
        {"0.weight": "G*c 1 2 2", "0.bias": "G*c", "1.*": "G*c", "3.weight": "b G*c 1 1"},
    ),
    Network("instance_norm", instance_norm, gaussian((8, 1, 5, 5)), {"a": Items(4, 1, 1), "b": Items(5)}, dead=4),
    Network("layer_norm", layer_norm_mlp, gaussian((12, 2)), {"a": Items(4, 1), "b": Items(5, 0, 1)}),
]
