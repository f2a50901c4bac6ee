"""The roles that SpinQuant gives to modules: writers of the rotated stream, its readers, and heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import NormalForm, SharedTurn

from .names import modules_of, named
from .trial import KEPT, MappingTrial

__all__ = ["rotations_of"]


def rotations_of(trial: MappingTrial, form: NormalForm) -> tuple[dict[str, Any], dict[str, float]]:
    """Returns SpinQuant's arguments, and the largest changes of an output.

    The keys of these are, for each norm whose gain is moved to other layers, its JSON; for a rotation of the stream
    ``embedding``; for one in all heads ``attn_v``.

    Raises:
        ValueError: if there is no stream that may be rotated, or a module with a role is not one of its own.
    """

    def of_kind(kind: str) -> list[tuple[SharedTurn, tuple[str, ...], tuple[str, ...]]]:
        turns = (turn for turn in form.mappings() if turn.kind == kind)
        return [(turn, modules_of(form.whole, turn.writers), modules_of(form.whole, turn.readers)) for turn in turns]

    streams = [(writers, readers) for turn, writers, readers in of_kind("rotations") if not turn.centred]
    if len(streams) != 1:
        raise _refused(
            f"{len(streams)} residual streams may be rotated, one is needed. None may if layer norms subtract means, "
            "gains are more than a factor, or the head is the embedding (give it a weight of its own)"
        )
    ((writers, readers),) = streams
    for side, paths in (("writes to", {*writers} - trial.embeddings), ("reads", {*readers})):
        if odd := sorted(paths - trial.linears):
            raise _refused(f"{odd[0]}, which {side} the stream, is no nn.Linear")
    gains = {norm: linears for _, (norm,), linears in of_kind("gains") if {*linears} <= {*readers}}
    if odd := [norm for norm in gains if len(trial.shape(norm)) != 1]:
        raise _refused(f"{odd[0]} has no weight, but a gain of another name")
    pairs = ((turn.size, write, read) for turn, write, read in of_kind("linear") if len(write) == len(read) == 1)
    heads = [(size, v, o) for size, (v,), (o,) in pairs if v in readers and o in writers]
    roles = _roles(trial, writers, readers, heads)
    errors = {
        "embedding": trial.rotated(gains, writers, readers, trial.shape(readers[0])[1]),
        "attn_v": max(trial.rotated({}, [v], [o], size) for size, v, o in heads),
    }
    if not max(errors.values()) <= KEPT:
        raise _refused(f"rotations of the stream and in heads change outputs: {errors}")
    norms, every = [], list(gains.items())
    for norm, linears, numbers in named(every, trial.paths):
        norms.append({"norm": norm, "linears": [*linears]})
        errors[json.dumps(norms[-1])] = max(trial.rotated(dict([every[n]]), [], [], 1) for n in numbers)
    return {"rotations": ["R1", "R2"], "norm_mappings": norms, "mappings": roles}, errors


def _roles(
    trial: MappingTrial, writers: Sequence[str], readers: Sequence[str], heads: Sequence[tuple[int, str, str]]
) -> dict[str, str | list[str]]:
    """Returns, for each role, the names or patterns of exactly the modules that have it."""
    roles: dict[str, list[str]] = {"embedding": [path for path in writers if path in trial.embeddings]}
    for _, v, o in heads:
        block = v.rpartition(".")[0]
        both = [path for path in readers if path.startswith(f"{block}.") and path != v]
        if not o.startswith(f"{block}.") or len(both) != 2:
            raise _refused(f"of {v}, queries and keys are not two more linear layers of one module with {o}")
        q, k = sorted(both, key=lambda path: -trial.shape(path)[0])  # there may be fewer keys than queries
        for role, path in {"attn": block, "attn_q": q, "attn_k": k, "attn_v": v, "attn_o": o}.items():
            roles.setdefault(role, []).append(path)
    head = [path for path in readers if not any(part.isdigit() for part in path.split("."))]
    counts = len(roles["embedding"]), len(heads), len(head)
    if counts[1] == 0 or counts[::2] != (1, 1):
        raise _refused(
            "one embedding, heads with values and outputs, and one linear layer after all blocks are needed, found "
            f"{counts[0]}, {counts[1]} and {counts[2]}"
        )
    taken = {path for paths in (*roles.values(), head) for path in paths}
    roles["mlp_in"], roles["mlp_out"] = ([p for p in paths if p not in taken] for paths in (readers, writers))
    roles["lm_head"] = head
    patterns: dict[str, str | list[str]] = {}
    for role, paths in roles.items():
        targets = [target for target, *_ in named([(path, ()) for path in paths], trial.paths)]
        if not role.startswith("mlp") and len(targets) != 1:
            raise _refused(f"{role} is not one pattern: {', '.join(targets)}")
        patterns[role] = targets if role.startswith("mlp") else targets[0]
    return patterns


def _refused(reason: str) -> InvalidValueError:
    return InvalidValueError(f"no SpinQuant mapping of this network: {reason}")
