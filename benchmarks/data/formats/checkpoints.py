"""Networks of an architecture in a file each: read without running their code, and checked."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from nfn_monomial.checks import listed
from nfn_monomial.errors import MissingFileError, MonomialError
from nfn_monomial.tools.checkpoints.networks import Network
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.files.checkpoints import TORCH, Checkpoint, TorchFile, read_checkpoint
from nfn_monomial.tools.predictors.models import NetworkInfo
from nfn_monomial.tools.predictors.tasks import MOST_WEIGHTS
from nfn_monomial.tools.results import Progress

from .base import CorpusError

__all__ = [
    "checkpoint_at",
    "counter",
    "info_of",
    "read_defined",
    "require_small",
]


def read_defined(defined: Definition, key: str | None, path: Path) -> dict[str, Tensor]:
    """The parameters of one network of an architecture, float32, from a file of any form that `read_checkpoint` reads.

    Args:
        defined: the architecture.
        key: of the state dict in files of ``torch.save`` that hold several.
        path: of the file.

    Raises:
        FileNotFoundError: if the file does not exist.
        CorpusError: naming the file, if it is damaged or of another architecture, or the tensor, if it holds NaN.
    """
    try:
        network = Network(defined, checkpoint_at(path, key))
        tensors = {name: t.float() for name, t in network.items()}
        shapes = defined.space.shapes()
        if others := [f"{n} is {tuple(t.shape)}, not {shapes[n]}" for n, t in tensors.items() if t.shape != shapes[n]]:
            raise CorpusError(
                f"{path}: the weights are of another architecture than {defined.name}: of other shape: {listed(others)}"
            )
        return tensors
    except MissingFileError:
        raise
    except MonomialError as error:
        raise CorpusError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def checkpoint_at(path: Path, key: str | None) -> Checkpoint:
    """The one at a path; files of ``torch.save`` may be called anything."""
    return read_checkpoint(path) if path.suffix and path.suffix not in TORCH else TorchFile(path, key)


def info_of(defined: Definition, keys: Iterable[str] = ()) -> NetworkInfo:
    """What models are told of the networks of an architecture, whose files have these keys."""
    own = defined.space.parameters
    others = {key: defined.tied.get(key) for key in defined.shapes if key not in own}
    saved = {key: name for key in keys if (name := defined.renamed(key)) != key}
    others |= {key: others.get(name, name) for key, name in saved.items() if name in defined.shapes}
    return NetworkInfo(defined.space, defined.name, defined.template, defined.input_shape, tuple(others.items()))


def require_small(defined: Definition, count: int) -> None:
    """Raise a CorpusError for so many networks that no predictor may read, or memory does not hold."""
    weights = sum(map(math.prod, defined.space.shapes().values()))
    if weights > MOST_WEIGHTS:
        raise CorpusError(
            f"{defined.name} has {weights:,} weights; predictors read networks of {MOST_WEIGHTS:,} at most"
        )
    if 4 * weights * count > (memory := _memory()):
        raise CorpusError(
            f"{count} networks of {weights:,} weights take {4 * weights * count / 2**30:.1f} GiB of memory, and this "
            f"machine has {memory / 2**30:.1f}: give a table of fewer lines"
        )


def _memory() -> float:
    """Bytes of the machine, as far as it says."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf


def counter(total: int, on_progress: Progress) -> Callable[[], object]:
    """What to call after each of ``total`` files."""
    done = itertools.count(1)
    return lambda: on_progress(next(done), total)
