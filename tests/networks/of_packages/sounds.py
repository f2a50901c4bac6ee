"""Two networks that listen, with the names of their packages' parameters.

Sound is ``(B, samples)`` at 16 kHz, in [-1, 1].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SileroVAD(nn.Module):
    """How likely each piece of 512 samples holds speech: a spectrum's magnitude, convolutions, an LSTM (silero-vad 6).

    Outputs ``(B, samples / 512)``. The state before the first piece is 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * 129, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def encoded(self, piece: Tensor) -> Tensor:
        """``(B, 64 + 512)``, 64 samples of the piece before in front -> ``(B, 128)``."""
        real, imaginary = self.stft_conv(F.pad(piece[:, None], (0, 64), mode="reflect")).chunk(2, dim=1)
        x = (real**2 + imaginary**2).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = F.relu(convolution(x))
        return x.squeeze(-1)

    def forward(self, sound: Tensor) -> Tensor:
        pieces = F.pad(sound, (64, 0)).unfold(1, 64 + 512, 512)
        state, found = None, []
        for i in range(pieces.shape[1]):
            state = self.lstm_cell(self.encoded(pieces[:, i]), state)
            found.append(torch.sigmoid(self.final_conv(F.relu(state[0])[..., None])).flatten(1))
        return torch.cat(found, dim=1)


class Crepe(nn.Module):
    """Pitch of frames of 1024 samples, as 360 bins of 20 cents (Kim et al. 2018, the tiny one).

    Its batch norms are behind the ReLUs. Outputs ``(B, 360)``, each in [0, 1].
    """

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 128, 16, 16, 16, 32, 64]
        for i in range(1, 7):
            size, stride = (512, 4) if i == 1 else (64, 1)
            self.add_module(f"conv{i}", nn.Conv2d(widths[i - 1], widths[i], (size, 1), (stride, 1)))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(widths[i], eps=1e-3))
        self.classifier = nn.Linear(4 * 64, 360)

    def forward(self, frame: Tensor) -> Tensor:
        x = frame[:, None, :, None]
        for i in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = self.get_submodule(f"conv{i}_BN")(F.relu(self.get_submodule(f"conv{i}")(x)))
            x = F.max_pool2d(x, (2, 1))
        return torch.sigmoid(self.classifier(x.transpose(1, 2).flatten(1)))
