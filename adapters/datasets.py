"""Networks as a data set of torch: one after the other, read when they are asked for, for a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils.data import Dataset

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError

from .matching import prefix_of
from .modules import load_checkpoint, stack_networks
from .tensor_files import read_safetensors

__all__ = ["StateDicts"]

Source: TypeAlias = "nn.Module | Mapping[str, Tensor] | str | Path"


class StateDicts(Dataset[tuple[dict[str, Tensor], Any]]):
    """Networks of one architecture and what is known of each: example i is ``(networks[i], targets[i])``.

    A network is a dict parameter of the space -> tensor ``(1, *shape)``, so that a ``DataLoader`` makes batches
    ``(B, 1, *shape)`` by itself, which `WeightSpace.pack`, models and `nfn_monomial.adapters.pyg.to_graph` take.

    Args:
        networks: modules, state dicts, or paths of safetensors files and of what ``torch.save`` wrote, which are read
            when they are asked for; keys in files may have a prefix, as ``module.``.
        space: their weight space.
        targets: one for each, a tensor ``(N, ...)`` or any sequence.
        key: of the state dict in files that hold more.
        names: as in `stack_networks`.
        ignore: keys, or patterns, of a state dict that are no parameters of the space.

    Raises:
        ValueError: if there are not as many targets as networks; when asked for one, as `stack_networks`.

    >>> space = WeightSpace.mlp([2, 8, 1], "relu")
    >>> states = [nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).state_dict() for _ in range(5)]
    >>> network, target = StateDicts(states, space, [0.1, 0.2, 0.3, 0.4, 0.5])[1]
    >>> network["weight.0"].shape, target
    (torch.Size([1, 8, 2]), 0.2)
    """

    def __init__(
        self,
        networks: Sequence[Source],
        space: WeightSpace,
        targets: Sequence[Any] | Tensor,
        *,
        key: str | None = None,
        names: Mapping[str, str] | None = None,
        ignore: str | Collection[str] = ("*.num_batches_tracked", "num_batches_tracked"),
    ) -> None:
        if len(networks) != len(targets):
            raise InvalidValueError(f"{len(networks)} networks and {len(targets)} targets: each network needs one")
        self.networks, self.space, self.targets = networks, space, targets
        self.key, self.names, self.ignore = key, names, ignore

    def __len__(self) -> int:
        return len(self.networks)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Any]:
        found = self.networks[index]
        if isinstance(found, str | Path):
            safe = Path(found).suffix == ".safetensors"
            state = read_safetensors(Path(found))[0] if safe else load_checkpoint(found, key=self.key)
            try:
                if self.names is None:
                    own = self.space.parameters
                    prefix = prefix_of([key for key in state if not key.endswith("num_batches_tracked")], own, own)
                    state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
                tensors = stack_networks(state, self.space, names=self.names, ignore=self.ignore)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{found}: {error}") from None
        else:
            tensors = stack_networks(found, self.space, names=self.names, ignore=self.ignore)
        return {name: tensor[0] for name, tensor in tensors.items()}, self.targets[index]
