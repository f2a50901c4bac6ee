"""How to train a model: a search over recipes, judged on parts of the training networks.

**Nested validation.** The training networks of every zoo are cut into folds (`cuts`). A recipe is tried on the other
folds and judged on one, in one or several cuts and on all zoos; its score is the mean, so that a model gets one recipe
for all of them. The zoo's validation networks only confirm what was chosen, beside the training without a recipe;
nothing is chosen by them. Test networks are dropped before anything begins.

**Honest scores.** The epoch that a training keeps is selected on the networks that it is judged on, which flatters
recipes of many epochs or noisy ones. So the score has two halves: tau of one half of these networks at the epoch that
the other half selects, and the other way round (`cuts.crossed`).

**The search** is optuna's: a tree-structured Parzen estimator proposes, and what is behind the median of all recipes at
the same place of their trainings is given up (`space`). No state of the library is kept. What was tried lies in a JSON
file, from which the search is made again before every proposal, and the proposal's seed is of its number (`search`):
so a search that was cut off anywhere goes on as if nothing had been.
"""
