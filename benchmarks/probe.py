"""How long a linear head on frozen features takes, and how good it is: beside scikit-learn's logistic regression.

The features are those of the file that VITREOUS_FEATURES names (safetensors: features, labels,
train), of a model and pictures of your own. Without it they are made up, of the size of a ViT-S
on 3,500 pictures: ten classes around ten centres, in noise whose strength differs from direction
to direction by a factor of thirty. All get the same standardised features.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Report, in_fresh_process, run_cases

FILE = os.environ.get("VITREOUS_FEATURES")  # the features of a real model, instead of made-up ones
SHOTS = {"5 shots": 5, "10 shots": 10, "all": None}
LIBRARIES = {
    "vitreous, l2 chosen": "ridge",
    "sklearn, C = 1": "logistic",
    "sklearn, C chosen": "logistic_cv",
}


def run(*, rounds: int, threads: int) -> Report:
    """Each number of shots with each way to find a head."""
    with tempfile.TemporaryDirectory() as folder:
        path = FILE or f"{folder}/features.safetensors"
        if not FILE:
            in_fresh_process("benchmarks.probe:write_features", path, threads=threads)
        cases = [
            Case(task, library, f"benchmarks.probe:{function}", (path, shots))
            for task, shots in SHOTS.items()
            for library, function in LIBRARIES.items()
        ]
        samples = run_cases(cases, rounds=rounds, threads=threads)
    return Report(
        name="probe",
        settings={"rounds": rounds, "threads": threads, "features": "made up" if not FILE else Path(FILE).name},
        samples=samples,
        columns={
            "fit ms": (lambda s: 1000 * s["fit"]["seconds"], ".1f"),
            "accuracy %": (lambda s: 100 * next(float(stage) for stage in s if stage[0] in "01"), ".2f"),
        },
        note="fit: from standardised features to a head, the choice of the regularisation included: among 31 values "
        "of l2 by leaving one out, among 10 of C by 5-fold cross-validation. Accuracy on pictures not fitted to"
        + ("." if FILE else "; the features are made up."),
    )


def ridge(path: str, shots: int | None) -> Iterator[str]:
    import torch

    from vitreous.evaluation.ridge import fit

    yield "import"
    x, y, x_test, y_test = (torch.from_numpy(part) for part in _parts(path, shots))
    fit(x[::9], y[::9] % 2, 2)  # the first fit of a process loads libraries, here and there
    yield "read"
    head = fit(x, y, 10)
    yield "fit"
    yield f"{(head.logits(x_test).argmax(dim=1) == y_test).double().mean().item():.4f}"


def logistic(path: str, shots: int | None) -> Iterator[str]:
    from sklearn.linear_model import LogisticRegression

    yield from _sklearn(LogisticRegression(max_iter=1000), path, shots)


def logistic_cv(path: str, shots: int | None) -> Iterator[str]:
    from sklearn.linear_model import LogisticRegressionCV

    chosen: dict[str, Any] = {"l1_ratios": (0.0,), "use_legacy_attributes": False}
    yield from _sklearn(LogisticRegressionCV(Cs=10, cv=5, max_iter=1000, **chosen), path, shots)


def _sklearn(model: Any, path: str, shots: int | None) -> Iterator[str]:
    from sklearn.linear_model import LogisticRegression

    yield "import"
    x, y, x_test, y_test = _parts(path, shots)
    LogisticRegression().fit(x[::9], y[::9] % 2)
    yield "read"
    model.fit(x, y)
    yield "fit"
    yield f"{(model.predict(x_test) == y_test).mean():.4f}"


def _parts(path: str, shots: int | None) -> Any:
    """(n, D) standardised features and classes: of the pictures to fit to, and of those to measure with."""
    import numpy as np
    from safetensors.numpy import load_file

    data = load_file(path)
    x, y, train = data["features"], data["labels"], data["train"].astype(bool)
    rows = np.flatnonzero(train)
    if shots:
        order = np.random.default_rng(0).permutation(rows)
        rows = np.concatenate([order[y[order] == c][:shots] for c in range(10)])
    mean, std = x[rows].mean(axis=0), x[rows].std(axis=0) + 1e-5
    return (x[rows] - mean) / std, y[rows], (x[~train] - mean) / std, y[~train]


def write_features(path: str) -> None:
    """Made-up features: 4,000 pictures, 384 numbers each."""
    import numpy as np
    from safetensors.numpy import save_file

    numbers = np.random.default_rng(0)
    y = np.arange(4000) % 10
    mixing = np.linalg.qr(numbers.standard_normal((384, 384)))[0] * np.geomspace(3, 0.1, 384)
    x = 0.16 * numbers.standard_normal((10, 384))[y] + numbers.standard_normal((4000, 384)) @ mixing
    train = np.arange(4000) < 3500
    save_file({"features": x.astype(np.float32), "labels": y, "train": train.astype(np.uint8)}, path)
