"""Convolutional networks without normalisation, and those of one kind of layer each."""

import torch
import torch.nn.functional as F
from networks.zoo import Items, gaussian, group, net
from torch import nn


@group({"a": Items(4, 1), "b": Items(5, 1), "c": Items(6, 1)}, {"fc1": "c b*4"})
@net(
    gaussian((8, 1, 8, 8)),
    conv1=nn.Conv2d(1, 4, 3), conv2=nn.Conv2d(4, 5, 2), fc1=nn.Linear(20, 6), fc2=nn.Linear(6, 3),
)  # fmt: skip
def lenet(m, x):
    x = F.max_pool2d(F.relu(m.conv1(x)), 2)
    x = F.relu(m.conv2(x))
    x = x.view(x.size(0), -1)
    return m.fc2(F.relu(m.fc1(x)))


FEATURES = nn.Sequential(
    nn.Conv2d(2, 4, (3, 1), padding=(1, 0)), nn.ReLU(inplace=True), nn.Conv2d(4, 5, (3, 1), padding=(1, 0)),
    nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(5, 6, (3, 1), padding=(1, 0)), nn.ReLU(inplace=True),
)  # fmt: skip
CLASSIFIER = nn.Sequential(nn.Linear(6, 7), nn.ReLU(True), nn.Dropout(), nn.Linear(7, 3))


@group({"a": Items(4, 1), "b": Items(5, 1), "c": Items(6, 1), "d": Items(7, 1)})
@net(gaussian((8, 2, 6, 6)), features=FEATURES, avgpool=nn.AdaptiveAvgPool2d((1, 1)), classifier=CLASSIFIER)
def vgg(m, x):
    return m.classifier(torch.flatten(m.avgpool(m.features(x)), 1))


@group({"e": Items(4, 1), "h1": Items(5, 1), "h2": Items(6, 1)})
@net(
    gaussian((8, 2, 6, 6)),
    stem=nn.Conv2d(2, 4, 3, padding=1), a=nn.ModuleList(nn.Conv2d(4, n, (1, 3), padding=(0, 1)) for n in (5, 6)),
    b=nn.ModuleList(nn.Conv2d(n, 4, 1, bias=False) for n in (5, 6)), head=nn.Linear(4, 3),
)  # fmt: skip
def resnet_plain(m, x):
    """Residual blocks without normalisation, ReLU on the stream."""
    x = m.stem(x).relu()
    for a, b in zip(m.a, m.b, strict=True):
        x = (x + b(a(x).relu())).relu()
    return m.head(x.mean((2, 3)))


@group(
    {"a": Items(4, 1), "b": Items(5, 1), "up": Items(6, 1, 1), "c": Items(7, 1)},
    {"merge": "c a+up", "up": "b up", "up.bias": "up"},
)
@net(
    gaussian((6, 1, 6, 6)),
    down1=nn.Conv2d(1, 4, 3, padding=1), down2=nn.Conv2d(4, 5, (1, 3), padding=(0, 1)),
    up=nn.ConvTranspose2d(5, 6, 2, stride=2), merge=nn.Conv2d(10, 7, 1), out=nn.Conv2d(7, 2, 1),
)  # fmt: skip
def unet(m, x):
    skip = F.relu(m.down1(x))
    deep = F.relu(m.down2(F.max_pool2d(skip, 2)))
    return m.out(F.relu(m.merge(torch.cat([skip, m.up(deep)], dim=1))))


@group({"a": Items(4, 0, 1), "b": Items(5, 0, 1), "c": Items(6, 1)}, {"dec": "c b+a"})
@net(
    gaussian((4, 1, 6, 6)),
    enc=nn.Conv2d(1, 4, 3, padding=1), mid=nn.Conv2d(4, 5, 1), dec=nn.Conv2d(9, 6, 1), out=nn.Conv2d(6, 2, 1),
)  # fmt: skip
def unet_upsampling(m, x):
    """Average pooling down, interpolation up; the skip is the second part of the concatenation."""
    skip = torch.tanh(m.enc(x))
    deep = torch.tanh(m.mid(F.avg_pool2d(skip, 2)))
    deep = F.interpolate(deep, scale_factor=2, mode="nearest")
    return m.out(F.leaky_relu(m.dec(torch.cat((deep, skip), 1)), 0.1))


@group({"a": Items(5, 1), "b": Items(4, 1)}, {"conv2": "b*4 a"})
@net(gaussian((2, 1, 5, 5)), conv1=nn.Conv2d(1, 5, 3, padding=1), conv2=nn.Conv2d(5, 16, 1), conv3=nn.Conv2d(4, 1, 3))
def super_resolution(m, x):
    x = F.pixel_shuffle(m.conv2(F.relu(m.conv1(x))), 2)
    return m.conv3(F.relu(x))


@group({"a": Items(5, 0, 1), "b": Items(6, 1)}, {"second": "b a*4"})
@net(gaussian((4, 1, 6, 6)), first=nn.Conv2d(1, 5, 1), second=nn.Conv2d(20, 6, 1), third=nn.Conv2d(6, 2, 2))
def pixel_unshuffle(m, x):
    x = F.pixel_unshuffle(torch.tanh(m.first(x)), 2)
    return m.third(torch.relu(m.second(x)))


@group({"e": Items(4, 1, 1), "h1": Items(5, 1), "h2": Items(6, 1)})
@net(
    gaussian((8, 2, 8)),
    project=nn.Conv1d(2, 4, 1), first=nn.ModuleList(nn.Conv1d(4, n, 2, dilation=d) for n, d in ((5, 1), (6, 2))),
    second=nn.ModuleList(nn.Conv1d(n, 4, 2, dilation=d) for n, d in ((5, 1), (6, 2))), head=nn.Conv1d(4, 2, 1),
)  # fmt: skip
def tcn(m, x):
    """Dilated causal convolutions with residuals."""
    x = m.project(x)
    for i, (a, b) in enumerate(zip(m.first, m.second, strict=True)):
        y = F.relu(a(F.pad(x, (2**i, 0))))
        x = x + b(F.pad(y, (2**i, 0)))
    return m.head(x)[:, :, -1]


@group(
    {"e": Items(4, 1), "G": Items(2), "i": Items(3, 1, 0, "G"), "o": Items(5, 1, 0, "G")},
    {"reduce": "G*i e", "grouped": "G*o i", "expand": "e G*o"},
)
@net(
    gaussian((8, 1, 6, 6)),
    stem=nn.Conv2d(1, 4, 3), reduce=nn.Conv2d(4, 6, 1), grouped=nn.Conv2d(6, 10, (1, 3), padding=(0, 1), groups=2),
    expand=nn.Conv2d(10, 4, 1), head=nn.Linear(4, 3),
)  # fmt: skip
def resnext(m, x):
    x = F.relu(m.stem(x))
    x = F.relu(x + m.expand(F.relu(m.grouped(F.relu(m.reduce(x))))))
    return m.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@group({"a": Items(5, 1), "r": Items(4, 1)})
@net(gaussian((8, 1, 6, 6)), conv=nn.Conv2d(1, 5, 3), fc1=nn.Linear(5, 4), fc2=nn.Linear(4, 5), head=nn.Linear(5, 3))
def squeeze_excite(m, x):
    x = F.relu(m.conv(x))
    gate = torch.sigmoid(m.fc2(F.relu(m.fc1(x.mean(dim=(-2, -1))))))
    return m.head((x * gate[:, :, None, None]).mean((2, 3)))


DEPTHWISE = nn.Sequential(
    nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.Flatten(2)
)
group({"a": Items(4, 2, 0)})(("pointwise_depthwise", DEPTHWISE, gaussian((4, 2, 6, 6))))
LINE = nn.Sequential(
    nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), nn.LeakyReLU(0.2), nn.MaxPool1d(2),
    nn.ConvTranspose1d(4, 5, 2), nn.Softsign(), nn.ConstantPad1d(1, 0.0), nn.Conv1d(5, 3, 2),
)  # fmt: skip
group({"a": Items(4, 1), "b": Items(5, 0, 1)})(("convolution_1d", LINE, gaussian((8, 2, 8))))
VOLUME = nn.Sequential(
    nn.Conv3d(1, 4, 2), nn.Tanh(), nn.AvgPool3d(2), nn.Conv3d(4, 5, 1), nn.ELU(), nn.Flatten(), nn.Linear(5 * 8, 2)
)
group({"a": Items(4, 0, 1), "b": Items(5)}, {"6": "2 b*8"})(("convolution_3d", VOLUME, gaussian((8, 1, 5, 5, 5))))
