"""Networks with normalisation: what eps breaks in front of it, and the gauges of gain and shift behind it.

A batch norm in eval mode is affine, with eps beside the running variance alone. So every channel has a scale and a sign
in front of it: charge +1 on what writes its input and on the running mean, -1 on the gain.
"""

import torch
import torch.nn.functional as F
from networks.zoo import Items, gaussian, group, net
from torch import Tensor, nn
from torch.nn.utils import parametrizations

COLUMN, ROW = {"kernel_size": (3, 1), "padding": (1, 0)}, {"kernel_size": (1, 3), "padding": (0, 1)}


def conv(inputs, outputs, kernel_size=1, **more):
    return nn.Conv2d(inputs, outputs, kernel_size, bias=False, **more)


def conv_bn(inputs, outputs, kernel_size=1, **more):
    return nn.Sequential(conv(inputs, outputs, kernel_size, **more), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, hidden, **COLUMN), nn.BatchNorm2d(hidden)
        self.conv2, self.bn2 = conv(hidden, outputs, **ROW), nn.BatchNorm2d(outputs)
        self.downsample = None if inputs == outputs else conv_bn(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return F.relu(out)


@group({"e1": Items(4, 3, 2), "h1": Items(5, 2, 1), "e2": Items(6, 3, 2), "h2": Items(7, 2, 1)})
@net(
    gaussian((8, 2, 6, 6)),
    conv1=conv(2, 4, 3, stride=2, padding=1), bn1=nn.BatchNorm2d(4), layer1=BasicBlock(4, 5, 4),
    layer2=BasicBlock(4, 7, 6), fc=nn.Linear(6, 3),
)  # fmt: skip
def resnet18(m, x):
    x = F.max_pool2d(F.relu(m.bn1(m.conv1(x))), 3, stride=1, padding=1)
    x = m.layer2(m.layer1(x))
    return m.fc(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


@group({"e": Items(4, 3, 2), "h1": Items(5, 2, 1), "h2": Items(6, 2, 1)})
@net(
    gaussian((8, 2, 5, 5)),
    stem=conv_bn(2, 4, 2), reduce=conv_bn(4, 5), middle=conv_bn(5, 6, **COLUMN), expand=conv_bn(6, 4),
    fc=nn.Linear(4, 3),
)  # fmt: skip
def resnet50(m, x):
    """One bottleneck behind a stem."""
    x = m.stem(x).relu()
    y = m.middle(m.reduce(x).relu_()).relu_()
    return m.fc((x + m.expand(y)).relu().mean((2, 3)))


@group({"e": Items(4, 3, 1), "h": Items(5, 2, 1)})
@net(
    gaussian((8, 2, 5, 5)),
    stem=conv(2, 4, 2), bn1=nn.BatchNorm2d(4), conv1=conv(4, 5, **COLUMN), bn2=nn.BatchNorm2d(5), conv2=conv(5, 4),
    bn=nn.BatchNorm2d(4), fc=nn.Linear(4, 3),
)  # fmt: skip
def resnet_preactivation(m, x):
    x = m.stem(x)
    x = x + m.conv2(F.relu(m.bn2(m.conv1(F.relu(m.bn1(x))))))
    return m.fc(F.relu(m.bn(x)).mean((2, 3)))


@group(
    {"a": Items(4, 4, 1), "b": Items(5, 3, 1), "c": Items(6, 2, 1)},
    {"layers.1.0.*": "a+b", "layers.1.2": "c a+b", "norm.*": "a+b+c", "classifier": "2 a+b+c"},
)
@net(
    gaussian((8, 2, 4, 4)),
    stem=conv(2, 4, 2),
    layers=nn.ModuleList(nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), conv(n, k)) for n, k in ((4, 5), (9, 6))),
    norm=nn.BatchNorm2d(15), classifier=nn.Linear(15, 2),
)  # fmt: skip
def densenet(m, x):
    features = [m.stem(x)]
    for layer in m.layers:
        features.append(layer(torch.cat(features, 1)))
    return m.classifier(F.relu(m.norm(torch.cat(features, 1))).mean(dim=[2, 3]))


@group({"e": Items(4, 3, 3), "a": Items(5, 1, 1), "h": Items(6, 2, 2), "b": Items(7, 1, 1)})
@net(
    gaussian((8, 1, 5, 5), deviation=8.0),
    stem=conv_bn(1, 5, 2), project0=conv_bn(5, 4), expand=conv_bn(4, 6),
    depthwise=conv_bn(6, 6, 3, padding=1, groups=6), project=conv_bn(6, 4), last=conv_bn(4, 7),
    classifier=nn.Linear(7, 2),
)  # fmt: skip
def mobilenet_v2(m, x):
    """The second block is a residual on a stream that no activation touches."""
    x = m.project0(F.relu6(m.stem(x)))
    x = x + m.project(F.relu6(m.depthwise(F.relu6(m.expand(x)))))
    return m.classifier(F.relu6(m.last(x)).mean([2, 3]))


def inverted(**excitation):
    """A stem, and a block that is five times as wide inside."""
    return {
        "stem": conv_bn(1, 4, 2), "expand": conv_bn(4, 5), "depthwise": conv_bn(5, 5, 3, padding=1, groups=5),
        **excitation, "project": conv_bn(5, 4), "head": nn.Linear(4, 2),
    }  # fmt: skip


@group({"e": Items(4, 2, 2), "h": Items(5, 2, 2), "r": Items(6, 1)})
@net(gaussian((8, 1, 5, 5)), **inverted(fc1=nn.Conv2d(5, 6, 1), fc2=nn.Conv2d(6, 5, 1)))
def mobilenet_v3(m, x):
    x = F.hardswish(m.stem(x))
    y = m.depthwise(F.hardswish(m.expand(x)))
    scale = F.hardsigmoid(m.fc2(F.relu(m.fc1(F.adaptive_avg_pool2d(y, 1)))))
    return m.head((x + m.project(F.hardswish(scale * y))).mean((-1, -2)))


@group({"e": Items(4, 3, 3), "h": Items(5, 2, 2), "r": Items(6)})
@net(gaussian((8, 1, 5, 5)), **inverted(squeeze=nn.Linear(5, 6), excite=nn.Linear(6, 5)))
def efficientnet(m, x):
    """MBConv with SiLU and squeeze-excite on a stream that begins without activation."""
    x = m.stem(x)
    y = F.silu(m.depthwise(F.silu(m.expand(x))))
    gate = m.excite(F.silu(m.squeeze(y.mean((2, 3))))).sigmoid()
    return m.head((x + m.project(y * gate[..., None, None])).mean((2, 3)))


@group(
    {"G": Items(2, 2, 1), "J": Items(2, 2, 1), "e": Items(3, 1, 0, "G"), "o": Items(5, 1, 0, "J")},
    {"stem": "G*e 1", "conv1": "G*J e", "depthwise": "J*G 1", "conv2": "J*o G", "head": "3 J*o"},
    note="the gauges of four channels, pairs of G and J, are as many as those of G and of J, which overlap",
)
@net(
    gaussian((8, 1, 5, 5)),
    stem=nn.Conv2d(1, 6, 2), conv1=nn.Conv2d(6, 4, 1, groups=2), depthwise=nn.Conv2d(4, 4, (3, 1), groups=4),
    conv2=nn.Conv2d(4, 10, 1, groups=2), head=nn.Linear(10, 3),
)  # fmt: skip
def shufflenet(m, x):
    """Grouped 1x1 convolutions with a shuffle of channels between them, depthwise in the middle; batch norms folded."""
    y = F.relu(m.conv1(F.relu(m.stem(x))))
    b, c, h, w = y.shape
    y = y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
    return m.head(F.relu(m.conv2(m.depthwise(y))).mean((2, 3)))


@group({"e": Items(4, 3, 3), "h": Items(5)})
@net(
    gaussian((8, 1, 5, 5)),
    stem=nn.Conv2d(1, 4, 2), dwconv=nn.Conv2d(4, 4, 3, padding=1, groups=4), norm=nn.LayerNorm(4),
    pwconv1=nn.Linear(4, 5), pwconv2=nn.Linear(5, 4), gamma=nn.Parameter(torch.ones(4)), head=nn.Linear(4, 3),
)  # fmt: skip
def convnext(m, x):
    x = m.stem(x)
    y = m.norm(m.dwconv(x).permute(0, 2, 3, 1))
    y = (m.gamma * m.pwconv2(F.gelu(m.pwconv1(y)))).permute(0, 3, 1, 2)
    return m.head((x + y).mean((2, 3)))


FIRST, SECOND = (parametrizations.weight_norm(nn.Linear(*sizes)) for sizes in ((2, 4), (4, 5)))


@group({"a": Items(4, 1, 1), "b": Items(5, 2, 1)}, constants=1)
@net(gaussian((12, 2)), first=FIRST, second=SECOND, last=nn.Linear(5, 3))
def weight_norm(m, x):
    """A gain of a direction per row: the columns of a normalised direction have no scale, the rows of it have one."""
    return m.last(F.relu(m.second(F.relu(m.first(x)))))


BATCHES = nn.Sequential(
    nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), nn.Tanh(),
    nn.Flatten(), nn.Dropout(), nn.Linear(5 * 9, 2),
)  # fmt: skip
GROUPS = nn.Sequential(
    nn.Conv2d(1, 6, 2), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
    nn.Flatten(), nn.Linear(5, 3),
)  # fmt: skip
INSTANCES = nn.Sequential(
    nn.Conv2d(1, 4, 2), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(), nn.Conv2d(4, 5, 2), nn.SELU(),
    nn.Conv2d(5, 2, 1),
)  # fmt: skip
LAYERS = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
group({"a": Items(4, 2, 1), "b": Items(5, 1, 2)}, {"8": "2 b*9"})(("batch_norm", BATCHES, gaussian((8, 2, 4, 4))))
group({"G": Items(2, 0, 1), "c": Items(3, 1, 0, "G"), "b": Items(5, 1)}, {"0": "G*c 1", "1.*": "G*c", "3": "b G*c"})(
    ("group_norm", GROUPS, gaussian((8, 1, 4, 4)))
)
group({"a": Items(4, 1, 1), "b": Items(5)}, dead=4)(("instance_norm", INSTANCES, gaussian((8, 1, 5, 5))))
group({"a": Items(4, 1), "b": Items(5, 0, 1)})(("layer_norm", LAYERS, gaussian((12, 2))))
