"""One self-contained HTML page, with its pictures and numbers beside it: what was read, what was tested, what holds."""

import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.base.files import atomic_write, write_text
from vitreous.base.statistics import spearman
from vitreous.classifier import Classifier
from vitreous.explain import draw
from vitreous.explain.explanation import Explanation
from vitreous.explain.lens import LogitLens
from vitreous.explain.methods.reads import ReadoutAttention
from vitreous.explain.question import Question
from vitreous.explain.removal import CAVEATS
from vitreous.explain.show import figures
from vitreous.explain.verification.check import MapCheck
from vitreous.explain.verification.verdict import Thresholds, Verdict
from vitreous.report.page import data_address, render
from vitreous.report.style import png

SIDE = 480  # pixels of the picture on the page


@dataclass
class Findings:
    """What is known of one picture so far; the page can be written at any moment.

    Args:
        name: the picture's name.
        question: the model, the picture and the class.
        read: attention of all layers and heads.
        lens: None for a model without a head.
        maps: in the order of the page.
        checks: method -> its tests, as far as they went.
        random_maps: method -> its map from a model with random weights.
        notes: what to say about how it was made.
        unfinished: what is missing, where work was cut short.
        photograph: the picture before any preprocessing, as a `data:` address; empty where there is none.
    """

    name: str
    question: Question
    read: ReadoutAttention
    lens: LogitLens | None = None
    maps: dict[str, Explanation] = field(default_factory=dict)
    checks: dict[str, MapCheck] = field(default_factory=dict)
    random_maps: dict[str, Explanation] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    unfinished: str = ""
    photograph: str = ""

    def save(self, out: str | Path) -> None:
        """Write `index.html`, a PNG of each map and of all heads, and `explanation.json` into the folder."""
        _write(Path(out), self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: every map, every test, and the attention of all layers and heads."""
        return _to_dict(self)

    def __str__(self) -> str:
        return "\n".join(str(check) for check in self.checks.values()) or self.unfinished


def _write(out: Path, found: Findings) -> None:
    files = {"attention-of-all-heads": png(figures.heads(found.read, found.question, 0))}
    for name, explanation in found.maps.items():
        files[name] = png(draw.figure(explanation, 0, found.checks.get(name)))
    for name, data in files.items():
        with atomic_write(out / f"{name}.png") as file:
            file.write(data)
    write_text(out / "explanation.json", json.dumps(_to_dict(found), indent=1) + "\n")
    write_text(out / "index.html", _page(found, files))


def _to_dict(found: Findings) -> dict[str, Any]:
    return {
        "picture": found.name,
        "unfinished": found.unfinished,
        "notes": dict(found.notes),
        "maps": {name: explanation.to_dict() for name, explanation in found.maps.items()},
        "checks": {name: check.to_dict() for name, check in found.checks.items()},
        "readout_attention": [[[round(v, 6) for v in h] for h in layer] for layer in found.read.weights[0].tolist()],
    }


def _page(found: Findings, files: dict[str, bytes]) -> str:
    question = found.question
    headed = question.target is not None
    stride = question.model.config.stride
    return render(
        "explain/show/page.html",
        title=f"{found.name}: what the answer depends on",
        answer=_answer(found),
        subtitle=f"{_count(question.model)} parameters, {question.grid[0]}x{question.grid[1]} patches of "
        f"{stride[0]}x{stride[1]} pixels.",
        unfinished=found.unfinished,
        photograph=found.photograph,
        seen=_picture(question),
        guesses=_guesses(question) if headed else [],
        target=question.label(0) if headed else "",
        probability=float(question.probability[0]) if headed else 0.0,
        score=question.score_name(0) if headed else "",
        value=float(question.value[0]) if headed else 0.0,
        unit=question.unit,
        maps=[_map(name, e, found, files[name]) for name, e in found.maps.items()],
        correlation=_correlation(found),
        tests=_tests(found),
        thresholds=next((check.thresholds for check in found.checks.values()), Thresholds()),
        random_maps=[
            {
                "words": f"{e.method.replace('_', ' ')}: {_alike(found.maps[name].values, e.values)}",
                "picture": data_address(png(draw.figure(e, 0))),
            }
            for name, e in found.random_maps.items()
        ],
        prefix_note=_prefix_note(found.read, question),
        heads=data_address(files["attention-of-all-heads"]),
        lens=None if found.lens is None else figures.lens(found.lens, 0, question.label(0)),
        about=found.notes,
        number=_number,
    )


def _answer(found: Findings) -> list[str]:
    """What taking away a few patches does, in sentences: first by occlusion, which measured it, then by other maps."""
    said = []
    for name in sorted(found.checks, key=lambda name: name != "occlusion"):
        check, patches = found.checks[name], found.question.grid[0] * found.question.grid[1]
        drawn = check.curves[check.tests[0].operator]
        few = max(round(0.05 * patches), 1)
        at = min(range(len(drawn["fractions"])), key=lambda i: abs(drawn["fractions"][i] * patches - few))
        few = round(drawn["fractions"][at] * patches)
        which = f"the {few} patches" if few > 1 else "the patch"
        others = f"{few} patches taken at random" if few > 1 else "a patch taken at random"
        said.append(
            f"Without {which} of {patches} that {name.replace('_', ' ')} ranks first, p({check.label}) goes from "
            f"{check.probability:.2f} to {drawn['deletion'][at]:.2f}; without {others}, to "
            f"{drawn['random_middle'][at]:.2f}."
        )
    return said


def _map(name: str, explanation: Explanation, found: Findings, picture: bytes) -> dict[str, Any]:
    check = found.checks.get(name)
    sentence = ""
    if check is not None and check.tests:
        t = check.tests[0]
        sentence = (
            f"Removing the patch that this map ranks first takes {_number(t.top_fall)} nats from the score; "
            f"the most that any patch takes is {_number(t.largest_fall)} "
            f"(T = {_number(t.top_effect)}, removal by {t.operator})."
        )
    return {
        "name": f"{explanation.method.replace('_', ' ')}: {explanation.caption[0].lower()}{explanation.caption[1:]}",
        "caption": explanation.caption,
        "verdict": (verdict := Verdict.UNTESTED if check is None else check.verdict).value,
        "chip": {Verdict.REFUTED: "bad", Verdict.CONSISTENT: "good"}.get(verdict, ""),
        "picture": data_address(picture),
        "sentence": sentence,
        "reasons": [] if check is None else [*check.reasons, *check.remarks],
    }


def _tests(found: Findings) -> list[dict[str, Any]]:
    checks = list(found.checks.values())
    if not checks:
        return []
    made = []
    for operator in (test.operator for test in checks[0].tests):
        with_it = [c for c in checks if operator in c.curves]
        tests = [(c.method.replace("_", " "), next(t for t in c.tests if t.operator == operator)) for c in with_it]
        t = tests[0][1]
        made.append(
            {
                "operator": operator,
                "caveat": CAVEATS[operator],
                "curves": figures.curves(with_it, operator),
                "rows": tests,
                "band": t.random,
                "edges": t.edges,
                "centre": t.centre,
            }
        )
    return made


def _correlation(found: Findings) -> str:
    attention, occlusion = found.maps.get("attention"), found.maps.get("occlusion")
    if attention is None or occlusion is None:
        return ""
    rho = spearman(attention.values[0], occlusion.values[0])
    return (
        f"Rank correlation of attention and occlusion over all patches: {_number(rho)}. Where few patches matter, the "
        "ranks of the many others are noise, so a low figure is no proof against a map."
    )


def _prefix_note(read: ReadoutAttention, question: Question) -> str:
    scale = "One scale for all, so that heads can be compared."
    if not question.prefix:
        return scale
    share = read.weights[0, :, :, : question.prefix].sum(dim=2).mean(dim=1)  # (L,)
    text = ", ".join(f"{v:.0%}" for v in share.tolist())
    return f"{scale} What goes to the CLS token itself is not drawn; by layer, in the mean over heads: {text}."


def _alike(a: Tensor, b: Tensor) -> str:
    return f"rank correlation {_number(spearman(a[0], b[0]))} with the map of the trained model"


def _guesses(question: Question) -> list[tuple[str, float]]:
    p = question.logits[0].softmax(dim=0)
    values, indices = p.topk(min(5, len(p)))
    subject = question.subject
    name = subject.label if isinstance(subject, Classifier) else "class {}".format
    return [(name(i), v) for i, v in zip(indices.tolist(), values.tolist(), strict=True)]


def _picture(question: Question) -> str:
    from PIL import Image

    pixels = torch.from_numpy(draw.seen(question, 0)).mul(255).round().byte().numpy()
    image = Image.fromarray(pixels)
    scale = max(SIDE // max(image.size), 1)
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    data = io.BytesIO()
    image.save(data, "PNG")
    return data_address(data.getvalue())


def _number(value: float) -> str:
    return "n/a" if not math.isfinite(value) else f"{value:.2f}"


def _count(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()):,}"
