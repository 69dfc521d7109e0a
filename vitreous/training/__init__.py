"""Training: recipes, the schedule, the optimisers, the loop and its state."""

from vitreous.training.recipe import Recipe
from vitreous.training.run import TrainingResult, finetune, pretrain

__all__ = ["Recipe", "TrainingResult", "finetune", "pretrain"]
