"""Looking inside a Vision Transformer, and testing what one sees there against interventions."""

from vitreous.base.errors import TooLarge
from vitreous.explain.evaluate import MapEvaluation, evaluate_maps, pointing
from vitreous.explain.explanation import Explanation, Kind, given
from vitreous.explain.inspect import (
    HeadReach,
    TokenNorms,
    head_reach,
    patch_filters,
    position_similarity,
    token_norms,
)
from vitreous.explain.investigation import investigate
from vitreous.explain.lens import Contributions, LogitLens, direct_contributions, logit_lens
from vitreous.explain.methods.controls import centre, edges, noise
from vitreous.explain.methods.gradients import chefer, grad_attention, integrated_gradients
from vitreous.explain.methods.interventions import occlusion, rise
from vitreous.explain.methods.reads import ReadoutAttention, attention, readout_attention, rollout
from vitreous.explain.methods.table import METHODS, compare
from vitreous.explain.question import Question, ask
from vitreous.explain.show.page import Findings
from vitreous.explain.verification.check import MapCheck, Report
from vitreous.explain.verification.ground import Budget
from vitreous.explain.verification.randomisation import Randomisation, randomisation
from vitreous.explain.verification.verdict import Thresholds, Verdict
from vitreous.explain.verification.verify import verify

__all__ = [
    "METHODS",
    "Budget",
    "Contributions",
    "Explanation",
    "Findings",
    "HeadReach",
    "Kind",
    "LogitLens",
    "MapCheck",
    "MapEvaluation",
    "Question",
    "Randomisation",
    "ReadoutAttention",
    "Report",
    "Thresholds",
    "TokenNorms",
    "TooLarge",
    "Verdict",
    "ask",
    "attention",
    "centre",
    "chefer",
    "compare",
    "direct_contributions",
    "edges",
    "evaluate_maps",
    "given",
    "grad_attention",
    "head_reach",
    "integrated_gradients",
    "investigate",
    "logit_lens",
    "noise",
    "occlusion",
    "patch_filters",
    "pointing",
    "position_similarity",
    "randomisation",
    "readout_attention",
    "rise",
    "rollout",
    "token_norms",
    "verify",
]
