"""The table of operators: name -> rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch._ops import OpOverload, OpOverloadPacket

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidTypeError

Rule: TypeAlias = Callable[..., Any]
"""``rule(run, *arguments, **options)``, tensors as `Value`, others as they are -> a value, or a tuple of several."""

F = TypeVar("F", bound=Rule)


class Entry(NamedTuple):
    """An operator.

    Attributes:
        rule: see `Rule`.
        bundles: whether that knows of concatenations whose parts are apart.
        linear: whether the operator is linear in its first argument, as what moves entries about or sums them.
    """

    rule: Rule
    bundles: bool = False
    linear: bool = False


OPERATORS: dict[str, Entry] = {}


def operator(*names: str, bundles: bool = False, linear: bool = False) -> Callable[[F], F]:
    """Enter a rule for ATen operators of these names (all overloads of each)."""

    def enter(rule: F) -> F:
        for name in names:
            assert name not in OPERATORS, f"two rules for {name}"
            OPERATORS[name] = Entry(rule, bundles, linear)
        return rule

    return enter


@checked
def register_operator(target: Any, rule: Rule) -> None:
    """Give an operator a rule, or another rule.

    Args:
        target: as a graph names it, with or without the overload, ``"aten.relu"``, ``"mylib.soft.default"``; one of
            ``torch.ops``; or a function made by ``torch.library.custom_op``.
        rule: ``rule(run, *arguments)`` -> `Value`; tensors among its arguments are values. ``run`` has the moves that
            rules consist of: ``run.unary(x, "odd")``, ``run.add``, ``run.multiply``, ``run.contract``, ``run.reduce``.

    Raises:
        TypeError: for what is no operator.

    >>> register_operator("mylib.soft_sign", lambda run, x: run.unary(x, "odd"))
    """
    target = getattr(target, "_opoverload", target)
    name = str(target)
    if not isinstance(target, str | OpOverload | OpOverloadPacket) or "." not in name or " " in name:
        raise InvalidTypeError(f"{target!r} is no operator; give its name as 'library.operator', or one of torch.ops")
    OPERATORS[short(name)] = Entry(rule)


def short(name: str) -> str:
    """The name of an operator in the table: ``aten.add.Tensor`` -> ``add``, ``mylib.f.default`` -> ``mylib.f``."""
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" else ".".join(parts[:2])
