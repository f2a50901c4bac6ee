"""How to train a model: a search over recipes, judged on parts of the training networks.

**Nested validation.** The training networks of every zoo are cut into folds (`cut`). A recipe is tried on the other
folds and judged on one, in one or several cuts and on all zoos; its score is the mean, so that a model gets one recipe
for all of them. The zoo's validation networks only confirm what was chosen, beside the training without a recipe;
nothing is chosen by them. Test networks are dropped before anything begins.

**Honest scores.** The epoch that a training keeps is selected on the networks that it is judged on, which flatters
recipes of many epochs or noisy ones. So the score has two halves: tau of one half of these networks at the epoch that
the other half selects, and the other way round (`crossed`).

**The search** is optuna's: a tree-structured Parzen estimator proposes, and what is behind the median of all recipes at
the same place of their trainings is given up. What was tried lies in optuna's journal in the results folder, and the
seed of a proposal is that of its number: so a search that was cut off anywhere goes on as if nothing had been.
"""
