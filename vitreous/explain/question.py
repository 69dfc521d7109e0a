"""What is asked of a model: these pictures, this class, this score; and a twin of the model to ask it of."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vitreous.base.errors import ConfigError, ImageError, WeightsError, did_you_mean
from vitreous.classifier import Classifier
from vitreous.config import Size
from vitreous.explain.forward import logits_of
from vitreous.explain.memo import Memo
from vitreous.model import VisionTransformer
from vitreous.pictures.preprocess import Preprocess

Subject = Classifier | VisionTransformer
ScoreName = Literal["log_odds", "logit", "prob", "contrast"]
Target = int | str | Sequence[int | str] | Tensor | None

UNITS: dict[str, str] = {"log_odds": "nats", "logit": "logits", "prob": "probability", "contrast": "nats"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """Pictures, and the score whose reasons are asked for. Made by `ask`.

    Args:
        subject: the model or classifier as it was given; never touched.
        model: its twin in float32, in evaluation mode, without gradients.
        images: (B, C, H, W) float32, normalised.
        chosen: (B,) the class in question; None for each picture's most probable one.
        score: what of the class is explained.
        instead_of: (B,) the other class of a contrast.
        memo: what was computed of these pictures and this model already, whatever the class and the score.
    """

    subject: Subject
    model: VisionTransformer
    images: Tensor
    chosen: Tensor | None
    score: ScoreName
    instead_of: Tensor | None = None
    memo: Memo = field(default_factory=Memo, repr=False)

    @property
    def grid(self) -> Size:
        """(h, w) patches."""
        return self.model.config.grid

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches."""
        return self.model.config.prefix_tokens

    @property
    def reader(self) -> str:
        """The token that the head reads, in words."""
        return "the CLS token" if self.model.config.classifier == "token" else "the mean over all patches"

    @property
    def preprocess(self) -> Preprocess | None:
        """What made the images; None where a bare model was given."""
        return self.subject.preprocess if isinstance(self.subject, Classifier) else None

    @property
    def unit(self) -> str:
        """Of the score."""
        return UNITS[self.score]

    @property
    def tokens(self) -> Tensor:
        """z_0, (B, S, D): embedded once, for all that is asked."""
        return self.memo.once("tokens", torch.no_grad()(lambda: self.model.embed(self.images)))

    @property
    def logits(self) -> Tensor:
        """(B, K) of the whole pictures."""
        return self.memo.once("logits", torch.no_grad()(lambda: logits_of(self.model, self.tokens)))

    @cached_property
    def target(self) -> Tensor | None:
        """(B,) the class in question, found on the whole pictures and then fixed; None without a head."""
        if self.model.head is None:
            return None
        return self.logits.argmax(dim=1) if self.chosen is None else self.chosen

    @property
    def value(self) -> Tensor:
        """(B,) the score of the whole pictures."""
        return self.score_of(self.logits)

    @property
    def probability(self) -> Tensor:
        """(B,) of the target on the whole pictures."""
        return probability(self.logits, self.asked())

    def asked(self) -> Tensor:
        """(B,) the target, or why there is none.

        Raises:
            WeightsError: the model has no head.
        """
        if self.target is None:
            raise WeightsError("this model has no head, so it has no class to explain: fine-tune it first")
        return self.target

    def score_of(self, logits: Tensor, which: Tensor | None = None) -> Tensor:
        """Logits (M, K) of pictures changed in some way -> (M,) scores; `which` (M,) says of which picture each is."""
        target, other = self.asked(), self.instead_of
        if which is not None:
            target, other = target[which], None if other is None else other[which]
        if self.score == "log_odds":
            return log_odds(logits, target)
        if self.score == "prob":
            return probability(logits, target)
        value = pick(logits, target)
        return value if other is None else value - pick(logits, other)

    def label(self, image: int) -> str:
        """The name of a picture's target."""
        index = int(self.asked()[image])
        return self.subject.label(index) if isinstance(self.subject, Classifier) else f"class {index}"

    def score_name(self, image: int) -> str:
        """The score in words."""
        if self.instead_of is not None:
            index = int(self.instead_of[image])
            other = self.subject.label(index) if isinstance(self.subject, Classifier) else f"class {index}"
            return f"logit against that of {other}"
        return {"log_odds": "log-odds", "logit": "logit", "prob": "probability"}[self.score]

    def of(self, model: VisionTransformer) -> "Question":
        """The same pictures, class and score asked of another model."""
        return dataclasses.replace(self, model=model, chosen=self.target, memo=Memo())

    def about(self, *, target: Tensor | None = None, score: ScoreName | None = None) -> "Question":
        """The same pictures and model, another class or score; what is known of them is shared."""
        return dataclasses.replace(
            self,
            chosen=self.target if target is None else target,
            score=score or self.score,
            instead_of=None if score else self.instead_of,
        )

    def effect(self) -> "Question":
        """The question that removals are judged by: log-odds, or the contrast where one was asked for."""
        return self if self.score in ("log_odds", "contrast") else self.about(score="log_odds")


def ask(
    subject: Subject | Question,
    images: Any = None,
    *,
    target: Target = None,
    score: ScoreName = "log_odds",
    instead_of: Target = None,
) -> Question:
    """Put a question to a model; the explanations do so themselves, and share the work when given one.

    The scores of class c with logits z:

        log_odds   z_c - log(sum of exp(z_k) over k other than c) = log(p_c / (1 - p_c))
        logit      z_c, which carries an offset that all classes share and no prediction depends on
        prob       p_c, which saturates
        contrast   z_c - z_d = log(p_c / p_d), with `instead_of` d

    Args:
        subject: a classifier, or a bare model.
        images: for a classifier pictures of any kind, one or several; for a bare model the
            normalised tensor (B, C, H, W).
        target: class index or name, one for all pictures or one each; None for each picture's
            most probable class. It stays the same however the picture is then changed.
        score: one of the above.
        instead_of: the class d of a contrast.

    Raises:
        ConfigError: unknown class or score.
        ImageError: pictures that cannot be read or are of another size.
    """
    if isinstance(subject, Question):
        return subject
    if score not in get_args(ScoreName):
        hint = did_you_mean(str(score), get_args(ScoreName))
        raise ConfigError(f"unknown score {score!r}{hint}: one of {', '.join(get_args(ScoreName))}")
    model = twin(subject.model if isinstance(subject, Classifier) else subject)
    x = _prepare(subject, images).to(model.position_embedding.device)
    if instead_of is not None:
        score = "contrast"
    elif score == "contrast":
        raise ConfigError("the score 'contrast' needs the other class: instead_of=...")
    classes = model.config.num_classes
    if score == "log_odds" and classes == 1:
        raise ConfigError("with a single output there are no odds: use score='logit'")
    chosen = other = None
    if model.head is not None:
        chosen = None if target is None else _classes(subject, target, len(x), classes, x.device)
        other = None if instead_of is None else _classes(subject, instead_of, len(x), classes, x.device)
    return Question(subject=subject, model=model, images=x, chosen=chosen, score=score, instead_of=other)


def twin(model: VisionTransformer) -> VisionTransformer:
    """The same model to try things on: float32, evaluation mode, no gradients; the memory of float32 weights is shared.

    Nothing done to the twin's mode or gradients reaches the model.
    """
    weights = {id(p): nn.Parameter(p.detach().float(), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, weights).eval()


def pick(values: Tensor, index: Tensor) -> Tensor:
    """(M, K), (M,) -> (M,)."""
    return values.gather(1, index[:, None])[:, 0]


def log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """log(p_c / (1 - p_c)), from the logits: (M, K), (M,) -> (M,)."""
    others = logits.scatter(1, target[:, None], float("-inf"))
    return pick(logits, target) - others.logsumexp(dim=1)


def probability(logits: Tensor, target: Tensor) -> Tensor:
    """p_c: (M, K), (M,) -> (M,)."""
    return pick(logits.softmax(dim=1), target)


def _prepare(subject: Subject, images: Any) -> Tensor:
    if isinstance(subject, Classifier):
        return subject.prepare(images)
    if not isinstance(images, Tensor):
        raise ImageError(
            f"a bare model takes a normalised tensor (B, C, H, W), got {type(images).__name__}: for pictures, "
            "give a Classifier"
        )
    return images.detach().float()


def _classes(subject: Subject, asked: Target, count: int, classes: int, device: torch.device) -> Tensor:
    several = asked.tolist() if isinstance(asked, Tensor) else asked
    wanted = [several] * count if isinstance(several, (int, str)) else list(several or ())
    if len(wanted) != count:
        raise ConfigError(f"{len(wanted)} classes for {count} pictures: give one, or one for each")
    return torch.tensor([_class(subject, c, classes) for c in wanted], device=device)


def _class(subject: Subject, asked: int | str, classes: int) -> int:
    labels = subject.labels if isinstance(subject, Classifier) else None
    if labels is not None and asked in labels:
        return labels.index(str(asked))
    if isinstance(asked, str) and not asked.lstrip("-").isdigit():
        raise ConfigError(f"no class {asked!r}{did_you_mean(asked, labels or ())}: 0 to {classes - 1}, or its name")
    if not 0 <= int(asked) < classes:
        raise ConfigError(f"no class {asked}: 0 to {classes - 1}")
    return int(asked)
