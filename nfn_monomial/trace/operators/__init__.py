"""Rules of operators, in one table. The modules are its pages; a new one is found automatically."""

from importlib import import_module
from pkgutil import iter_modules

from .table import OPERATORS, Entry, Rule, entry_of, register_operator, ruled, short

__all__ = ["OPERATORS", "Entry", "Rule", "entry_of", "register_operator", "ruled", "short"]

for _page in iter_modules(__path__):
    import_module(f"{__name__}.{_page.name}")
