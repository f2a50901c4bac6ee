"""Experiments and speed comparisons; installed as ``nfn_monomial.benchmarks``."""
