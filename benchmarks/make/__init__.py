"""Making networks to learn from: zoos of classifiers, corpora of INRs."""
