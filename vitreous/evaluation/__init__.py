"""How good a classifier is: metrics over a data set, and the report to look at."""

from vitreous.evaluation.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
