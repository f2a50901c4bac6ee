"""Networks in files: safetensors and torch files <-> batches of networks, at once or when a ``DataLoader`` asks."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import safetensors.torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.matching import is_ignored
from nfn_monomial.adapters.modules import stack_labelled, stack_networks, unstack_networks
from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError

from .atomic import write_whole
from .keys import prefix_of
from .tensors import PathLike, kind_of, module_state, read_safetensors, read_torch_file

__all__ = ["StateDicts", "load_checkpoint", "load_safetensors", "save_safetensors"]

SHOWN = 16  # entries in a message
Source: TypeAlias = "nn.Module | Mapping[str, Tensor] | str | Path"


class StateDicts(Dataset[tuple[dict[str, Tensor], Any]]):
    """Networks of one architecture, each with a target: example i is ``(networks[i], targets[i])``.

    A network is a dict parameter of the space -> tensor ``(1, *shape)``, so that a ``DataLoader`` makes batches
    ``(B, 1, *shape)`` by itself, which `WeightSpace.pack`, models and `nfn_monomial.adapters.pyg.to_graph` take.

    Args:
        networks: modules, state dicts, or paths of safetensors files and of files of ``torch.save``, which are read
            when they are asked for; keys in files may have a prefix, such as ``module.``.
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
        network = self.networks[index]
        if isinstance(network, str | Path):
            safe = Path(network).suffix == ".safetensors"
            state = read_safetensors(Path(network))[0] if safe else load_checkpoint(network, key=self.key)
            try:
                if self.names is None:
                    names = self.space.parameters
                    prefix = prefix_of([key for key in state if not key.endswith("num_batches_tracked")], names, names)
                    state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
                tensors = stack_networks(state, self.space, names=self.names, ignore=self.ignore)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{network}: {error}") from None
        else:
            tensors = stack_networks(network, self.space, names=self.names, ignore=self.ignore)
        return {name: tensor[0] for name, tensor in tensors.items()}, self.targets[index]


def load_safetensors(
    paths: PathLike | Iterable[PathLike],
    space: WeightSpace,
    *,
    names: Mapping[str, str] | None = None,
    ignore: str | Collection[str] = (),
) -> dict[str, Tensor]:
    """Reads safetensors files, one network each: parameter of the space -> ``(B, 1, *shape)``, on the CPU.

    Args:
        paths: one file, or any number.
        space: the networks' weight space.
        names: as in `stack_networks`, as is ``ignore``.
        ignore: keys or patterns to leave out.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: naming the file, if it is truncated or no safetensors file; otherwise as in `stack_networks`,
            with the file's name.
        TypeError: as in `stack_networks`.
    """
    networks = [(str(file), read_safetensors(file)[0]) for file in _files(paths)]
    return stack_labelled(networks, space, names, ignore)


def save_safetensors(
    tensors: Mapping[str, Tensor],
    paths: PathLike | Iterable[PathLike],
    space: WeightSpace,
    *,
    names: Mapping[str, str] | None = None,
) -> None:
    """Writes each network of a batch to a safetensors file, as `load_safetensors` reads it.

    A file appears under its name only when it is complete. Missing folders are made.

    Args:
        tensors: parameter -> ``(B, 1, *shape)``.
        paths: ``B`` different files.
        space: the networks' weight space.
        names: parameter of the space -> key in the files; its own name by default.

    Raises:
        ValueError: if there are not as many paths as networks, and as in `unstack_networks`; nothing is written then.
    """
    files, states = _files(paths), unstack_networks(tensors, space, names=names)
    different = len({file.resolve() for file in files})
    if not different == len(files) == len(states):
        raise InvalidValueError(
            f"{len(states)} networks need as many different paths; {different} of {len(files)} given"
        )
    for file, state in zip(files, states, strict=True):
        write_whole(file, functools.partial(safetensors.torch.save_file, state, metadata={"format": "pt"}))


def load_checkpoint(path: PathLike, *, key: str | None = None, ignore: str | Collection[str] = ()) -> dict[str, Tensor]:
    """Reads the state dict in a ``.pt`` or ``.pth`` file, on the CPU, without importing or calling any name in it.

    For a module that was saved whole, it is the state dict that torch would make of it.

    Args:
        path: the file.
        key: entry that holds the state dict, if the file holds more than that (``"model"``, ``"state_dict"``).
        ignore: keys or patterns to drop: a label, an epoch, or anything else that is no tensor.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: naming the file, if it is damaged or holds no state dict.
    """
    file = Path(path)
    content = read_torch_file(file)
    if key is not None:
        if not isinstance(content, Mapping) or key not in content:
            raise InvalidValueError(f"{file} has no entry {key!r}; it holds {_entries(content)}")
        content = content[key]
    content = module_state(content) or content
    if not isinstance(content, Mapping):
        raise InvalidValueError(
            f"{file} holds a {kind_of(content)}, no state dict: save one by torch.save(module.state_dict(), path)"
        )
    state = {k: v for k, v in content.items() if not is_ignored(str(k), ignore)}
    other = {k: v for k, v in state.items() if not (isinstance(v, Tensor) and isinstance(k, str))}
    if other:
        raise InvalidValueError(
            f"{file} holds entries that are no tensors: {_entries(other)}. If one of them is the state dict, give "
            "key=; if not, ignore=(...)"
        )
    return state


def _files(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def _entries(content: object) -> str:
    """Lists the first entries of a file, with their types."""
    if not isinstance(content, Mapping):
        return kind_of(content)
    return ", ".join([f"{shown(key)} ({kind_of(value)})" for key, value in itertools.islice(content.items(), SHOWN)])
