"""The methods by name, as the command and the comparisons call them: each a function of a question."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from vitreous.base.errors import ConfigError, did_you_mean
from vitreous.explain.explanation import Explanation
from vitreous.explain.methods.controls import centre, edges, noise
from vitreous.explain.methods.gradients import chefer, grad_attention, integrated_gradients
from vitreous.explain.methods.interventions import occlusion, rise
from vitreous.explain.methods.reads import attention, rollout
from vitreous.explain.question import Question, ScoreName, Subject, Target, ask

Method = Callable[[Question], Explanation]

METHODS: Mapping[str, Callable[..., Explanation]] = MappingProxyType(
    {
        "attention": attention,
        "rollout": rollout,
        "grad_attention": grad_attention,
        "chefer": chefer,
        "integrated_gradients": integrated_gradients,
        "occlusion": occlusion,
        "rise": rise,
        "noise": noise,
        "centre": centre,
        "edges": edges,
    }
)


def method(name: str, **settings: Any) -> Method:
    """The method of that name with some of its settings fixed.

    Raises:
        ConfigError: an unknown name, with the nearest known one.
    """
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}{did_you_mean(name, METHODS)}: one of {', '.join(METHODS)}")
    return partial(METHODS[name], **settings)


def compare(
    subject: Subject | Question,
    images: Any = None,
    methods: Sequence[str] = ("attention", "rollout", "chefer", "integrated_gradients", "occlusion"),
    *,
    target: Target = None,
    score: ScoreName = "log_odds",
    instead_of: Target = None,
) -> dict[str, Explanation]:
    """Several methods on the same pictures and class; whatever they and their verification share is computed once."""
    question = ask(subject, images, target=target, score=score, instead_of=instead_of)
    return {name: method(name)(question) for name in methods}
