"""Derivations that look for parameters that do not matter, as `WeightSpace.from_module` does."""

import functools

from nfn_monomial import trace
from nfn_monomial.verify.dead import dead_parts

derive = functools.partial(trace.derive, dead=dead_parts)
