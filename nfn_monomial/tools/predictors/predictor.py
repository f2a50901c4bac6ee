"""Trained models that can be applied: loaded from the file that an experiment has left, asked about networks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nfn_monomial.adapters.files import damaged
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.checkpoints.files import TORCH, Checkpoint, read_checkpoint
from nfn_monomial.tools.files import write_atomically
from nfn_monomial.tools.sealed import read_sealed, seal

from .budget import Budget
from .models import NetworkInfo, at_once
from .networks import Given, Network, checkpoint_paths, given_networks, in_checkpoint, match
from .tasks import Prediction, Task, read_task

__all__ = ["SHIPPED", "Predictor"]

SHIPPED = Path(__file__).with_name("digits-relu.safetensors")
"""A predictor of the accuracy of the demo's ReLU networks, which is part of the package."""

S = TypeVar("S", list[int], range)
Answer = Any
"""Of one network: a tensor, or the state dict of the edited network."""


@dataclass(frozen=True)
class Predictor:
    """A trained model and all that it takes to apply it.

    Call it with networks: a module, a state dict, any number of these, or tensors ``(N, 1, *shape)`` by the names of
    the weight space. It answers

    - what an accuracy predictor was trained for: accuracies in [0, 1], ``(N,)``;
    - of INRs that show digits: the probability of each class, ``(N, classes)``;
    - as an editor: the edited networks, a list of N state dicts with the keys and dtypes of those given.

    Networks may be wider than those it was trained on, where its model reads any width, and of other architecture they
    may not: this is refused in words. Of weights alone nobody knows the activations: those it was trained for are
    taken; of modules they are looked at.

    Attributes:
        task: what is asked, about which networks.
        model: in evaluation mode; may be moved to another device, or made double.
        record: what is known of its training, as JSON has it: settings, seed, metrics on validation and test networks.

    >>> from nfn_monomial.tools import Predictor
    >>> predictor = Predictor.load()
    >>> predictor.reads
    '4 layers 1-16-16-16-10, kernels 3x3, 3x3, 3x3, relu, on inputs 1x8x8, of any width'
    """

    task: Task
    model: nn.Module
    record: Mapping[str, Any]

    @classmethod
    def load(cls, path: str | Path = SHIPPED) -> Predictor:
        """The predictor in a file; by default the one that ships with this package.

        Nothing is unpickled, a checksum finds damage, and no model is built that is larger than the file.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: naming the file, if it is damaged, no predictor, of another version, or of a model that is not
                known here.
        """
        with damaged(path, "copy it again, or train the model again"):
            tensors, record = read_sealed(path)
            if not isinstance(record, dict):
                raise InvalidValueError("it does not state what its weights are")
        try:
            task = read_task(record.get("predictor"))
            model = _built(task, tensors, record)
        except MonomialError as error:
            raise InvalidValueError(f"{path} cannot be used as a predictor: {error}") from error
        return cls(task, model.eval(), record)

    def save(self, path: str | Path) -> None:
        """Write it to a file, which appears whole or not at all; `load` is the exact inverse."""
        record = {**self.record, "predictor": self.task.written()}
        write_atomically(Path(path), seal(self.model.state_dict(), record))

    @property
    def reads(self) -> str:
        """Which networks it reads, in words."""
        return self.task.reads(self._any_width)

    @property
    def metrics(self) -> dict[str, float]:
        """How well it did on test networks, as they are, when it was trained."""
        match self.record:
            case {"tests": [{"metrics": dict(metrics)}, *_]}:
                return {str(name): value for name, value in metrics.items() if isinstance(value, float)}
        return {}

    @property
    def _any_width(self) -> bool:
        return bool(self.model.any_width)

    def __call__(self, networks: Network | Iterable[Network]) -> Any:
        """Answers for N networks, see the class.

        Raises:
            ValueError: naming the network, if it is none that the predictor was trained for, or holds NaN; if there
                are none.
            TypeError: for what is no network.
        """
        if (info := self._stacked(networks)) is not None:
            assert isinstance(networks, Mapping), "found to be so"
            if not len(next(iter(networks.values()))):
                raise InvalidValueError("an empty batch; at least one network is needed")
            places = range(len(next(iter(networks.values()))))
            parts = ({name: t[p.start : p.stop] for name, t in networks.items()} for p in _parts(places, networks))
            stacked = [answer for part in parts for answer in self._answers(part, info)]
            return _joined(stacked, [{name: name for name in networks}] * len(stacked), [networks] * len(stacked))
        given = given_networks(networks)
        if not given:
            raise InvalidValueError("no networks given; at least one is needed")
        answers, names = self._asked(given)
        return _joined(answers, names, [network.state for network in given])

    def predict(
        self,
        paths: Sequence[str | Path],
        *,
        key: str | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        call: Call = ALONE,
    ) -> list[Prediction]:
        """Answers for checkpoints, of safetensors or ``torch.save``, and for all that lie in folders.

        Args:
            paths: files and folders.
            key: of the state dict in files of ``torch.save`` that hold several.
            on_progress: called with the number of checkpoints that were read, and of all.
            call: which keeps the answers.

        Raises:
            FileNotFoundError: if a file is not there.
            ValueError: naming the file, if it is damaged or as when called.
            TypeError: as when called.
        """
        files = checkpoint_paths(paths)
        found: list[Prediction] = []
        for read in _read(files, key, on_progress):
            keys, tensors = call.piece(f"answers-{len(found)}", functools.partial(self._of_checkpoints, read))
            answers: list[Answer] = [{} for _ in read]
            for name, tensor in tensors.items():
                number, _, entry = name.partition(" ")
                if entry:
                    answers[int(number)][entry] = tensor
                else:
                    answers[int(number)] = tensor
            found += map(Prediction, read, keys, answers)
        return found

    def _of_checkpoints(self, read: Sequence[Checkpoint]) -> tuple[list[dict[str, str]], dict[str, Tensor]]:
        """Of each its keys, and answers by its number and, of an edited network, key."""
        given = [in_checkpoint(checkpoint) for checkpoint in read]
        answers, names = self._asked(given)
        tensors: dict[str, Tensor] = {}
        for i, (network, answer) in enumerate(zip(given, answers, strict=True)):
            if isinstance(answer, dict):
                edited = _state(answer, names[i], network.state)
                tensors |= {f"{i} {key}": t for key, t in edited.items()}
            else:
                tensors[f"{i}"] = answer
        return names, tensors

    def _asked(self, given: Sequence[Given]) -> tuple[list[Answer], list[dict[str, str]]]:
        """Answers in the order of the networks, those of one shape computed together; and their keys."""
        infos, reads = self.task.infos, self.reads
        matched = [match(network, infos, self._any_width, reads) for network in given]
        alike: dict[Any, list[int]] = {}
        for i, (number, names) in enumerate(matched):
            shapes = tuple(given[i].state[key].shape for key in names.values())
            alike.setdefault((number, shapes), []).append(i)
        answers: list[Answer] = [None] * len(given)
        for (number, _), rows in alike.items():
            first = {key: given[rows[0]].state[key][None] for key in matched[rows[0]][1].values()}
            for part in _parts(rows, first):
                tensors = {
                    name: torch.stack([self._like_model(given[i].state[matched[i][1][name]]) for i in part])[:, None]
                    for name in infos[number].space.parameters
                }
                for i, answer in zip(part, self._answers(tensors, infos[number]), strict=True):
                    answers[i] = answer
        return answers, [names for _, names in matched]

    @torch.no_grad()
    def _answers(self, tensors: Mapping[str, Tensor], info: NetworkInfo) -> list[Answer]:
        """One for each of the networks ``(B, 1, *shape)``."""
        count = len(next(iter(tensors.values())))
        answer = self.task.answer(self.model, {n: self._like_model(t) for n, t in tensors.items()}, info)
        if isinstance(answer, Tensor):
            return list(answer)
        return [{name: t[i, 0] for name, t in answer.items()} for i in range(count)]

    def _like_model(self, tensor: Tensor) -> Tensor:
        like = next(self.model.parameters())
        return tensor.to(like.device, like.dtype)

    def _stacked(self, networks: Any) -> NetworkInfo | None:
        """The architecture that these tensors are a batch of, if they are one."""
        if not isinstance(networks, Mapping) or not all(isinstance(t, Tensor) for t in networks.values()):
            return None
        ranks = {name: t.ndim - 2 for name, t in networks.items()}
        infos = self.task.infos
        if not any(ranks == {name: len(dims) for name, dims in info.space.parameters.items()} for info in infos):
            return None
        one = {name: torch.zeros(t.shape[2:]) for name, t in networks.items()}
        found = infos[match(Given("this batch", one), infos, self._any_width, self.reads)[0]]
        found.space.validate(networks)
        if (channels := next(iter(networks.values())).shape[1]) != 1:
            raise InvalidValueError(f"this batch holds {channels} channels, expected (N, 1, *shape)")
        return found


def _joined(answers: list[Answer], names: list[dict[str, str]], networks: Sequence[Mapping[str, Tensor]]) -> Any:
    if isinstance(answers[0], Tensor):
        return torch.stack(answers)
    return [_state(answer, keys, like) for answer, keys, like in zip(answers, names, networks, strict=True)]


def _state(edited: Mapping[str, Tensor], names: Mapping[str, str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An edited network as a state dict, with keys and dtypes as they were."""
    return {key: edited[name].to(like[key].device, like[key].dtype) for name, key in names.items()}


def _parts(rows: S, networks: Mapping[str, Tensor]) -> Iterator[S]:
    """Numbers of networks that are answered at once; ``networks``: at least one of them, ``(N, ...)``."""
    most = at_once(sum(t[0].nbytes for t in networks.values()))
    return (rows[start : start + most] for start in range(0, len(rows), most))


def _read(
    files: Sequence[Path], key: str | None, on_progress: Callable[[int, int], None]
) -> Iterator[list[Checkpoint]]:
    """Checkpoints that are answered at once."""
    part: list[Checkpoint] = []
    largest = 0
    for number, path in enumerate(files, start=1):
        checkpoint = read_checkpoint(path, key if path.suffix in TORCH else None)
        size = sum(file.stat().st_size for file in set(checkpoint.files))
        if part and len(part) >= at_once(max(size, largest)):
            yield part
            part, largest = [], 0
        largest = max(size, largest)
        part.append(checkpoint)
        on_progress(number, len(files))
    yield part


def _built(task: Task, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> nn.Module:
    settings = record.get("settings")
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), str):
        raise InvalidValueError("its settings name no model")
    try:
        with Budget(tensors), torch.random.fork_rng(devices=[]):
            model = task.build(settings["model"], settings.get("options") or {})
    except MonomialError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError, IndexError) as error:
        raise InvalidValueError(f"its model {settings['model']!r} cannot be built: {error!r}") from error
    own = {name: (t.dtype, t.shape) for name, t in model.state_dict().items()}
    found = {name: (t.dtype, t.shape) for name, t in tensors.items()}
    if own != found:
        wrong = next(name for name in (*own, *found) if own.get(name) != found.get(name))
        raise InvalidValueError(
            f"its weights are not those of the model {settings['model']!r} of this version: {wrong} is "
            f"{found.get(wrong, 'missing')}, expected {own.get(wrong, 'none')}"
        )
    model.load_state_dict(dict(tensors))
    return model
