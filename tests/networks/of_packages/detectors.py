"""The three networks of MTCNN, which find faces (Zhang et al. 2016, Fig. 2), with PReLU.

Names of parameters are those of facenet-pytorch. Images ``(B, 3, H, W)``, each pixel in [-1, 1].
"""

import torch
from torch import Tensor, nn


def convolution(name: str, inputs: int, outputs: int, size: int) -> dict[str, nn.Module]:
    return {f"conv{name}": nn.Conv2d(inputs, outputs, size), f"prelu{name}": nn.PReLU(outputs)}


def pool(name: str, size: int) -> dict[str, nn.Module]:
    return {f"pool{name}": nn.MaxPool2d(size, 2, ceil_mode=True)}


class Detector(nn.Module):
    """Layers one after the other, then heads side by side; the first head says how likely a face is."""

    def __init__(self, layers: dict[str, nn.Module], heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.order, self.heads = tuple(layers), tuple(heads)
        for name, module in (layers | heads).items():
            self.add_module(name, module)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = image
        for name in self.order:
            if name.startswith("dense"):
                x = x.permute(0, 3, 2, 1).flatten(1)  # columns as in Caffe: width, height, channel
            x = self.get_submodule(name)(x)
        face, *others = (self.get_submodule(name)(x) for name in self.heads)
        return torch.softmax(face, dim=1), *others


def pnet() -> Detector:
    """Proposals: fully convolutional, images of 12 x 12 and larger."""
    layers = convolution("1", 3, 10, 3) | pool("1", 2) | convolution("2", 10, 16, 3) | convolution("3", 16, 32, 3)
    return Detector(layers, {"conv4_1": nn.Conv2d(32, 2, 1), "conv4_2": nn.Conv2d(32, 4, 1)})


def rnet() -> Detector:
    """Refinement: images of 24 x 24."""
    layers = convolution("1", 3, 28, 3) | pool("1", 3) | convolution("2", 28, 48, 3) | pool("2", 3)
    layers |= convolution("3", 48, 64, 2) | {"dense4": nn.Linear(576, 128), "prelu4": nn.PReLU(128)}
    return Detector(layers, {"dense5_1": nn.Linear(128, 2), "dense5_2": nn.Linear(128, 4)})


def onet() -> Detector:
    """Outputs, landmarks included: images of 48 x 48."""
    layers = convolution("1", 3, 32, 3) | pool("1", 3) | convolution("2", 32, 64, 3) | pool("2", 3)
    layers |= convolution("3", 64, 64, 3) | pool("3", 2) | convolution("4", 64, 128, 2)
    layers |= {"dense5": nn.Linear(1152, 256), "prelu5": nn.PReLU(256)}
    return Detector(layers, {f"dense6_{i}": nn.Linear(256, n) for i, n in ((1, 2), (2, 4), (3, 10))})
