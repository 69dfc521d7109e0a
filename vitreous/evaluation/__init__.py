"""How good a classifier is: metrics over a data set, and the report to look at."""

from vitreous.evaluation.evaluate import Evaluation, evaluate
from vitreous.evaluation.probe import Probe, probe

__all__ = ["Evaluation", "Probe", "evaluate", "probe"]
