"""How long until a command answers: `vitreous --help`, and `vitreous predict` on one picture with ViT-B/16.

Beside the least that it could take: import torch, load the tensors of the same file, one pass. Each
in a Python of its own, from its start to its end, with the file warm in the system's cache.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.harness import Case, Report, in_fresh_process, run_cases

LEAST = """
import sys
import torch
from safetensors.torch import load_file
from vitreous.config import ViTConfig
from vitreous.model import VisionTransformer
with torch.device("meta"):
    model = VisionTransformer(ViTConfig.from_name("B/16"))
model.load_state_dict(load_file(sys.argv[1]), assign=True)
with torch.inference_mode():
    model.eval()(torch.zeros(1, 3, 224, 224))
"""


def run(*, rounds: int, threads: int) -> Report:
    """Each command once a round."""
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process("benchmarks.start:write_files", folder, threads=threads)
        model, picture = f"{folder}/model.safetensors", f"{folder}/picture.png"
        commands = {
            ("predict", "vitreous"): ["-m", "vitreous", "predict", model, picture],
            ("predict", "torch, load, pass"): ["-c", LEAST, model],
            ("--help", "vitreous"): ["-m", "vitreous", "--help"],
            ("--help", "import torch"): ["-c", "import torch"],
        }
        cases = [Case(*names, "benchmarks.start:command", tuple(words)) for names, words in commands.items()]
        samples = run_cases(cases, rounds=rounds, threads=threads)
    return Report(
        name="start",
        settings={"rounds": rounds, "threads": threads},
        samples=samples,
        columns={"s": (lambda s: s["command"]["seconds"], ".2f")},
        note="Seconds from the start of Python to its end.",
    )


def command(*words: str) -> Iterator[str]:
    yield "nothing"
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    yield "command"


def write_files(folder: str) -> None:
    """A ViT-B/16 with a head that may predict, and a picture."""
    import torch
    from PIL import Image

    from vitreous.classifier import Classifier
    from vitreous.config import ViTConfig
    from vitreous.model import VisionTransformer
    from vitreous.pictures.preprocess import Preprocess

    model = VisionTransformer(ViTConfig.from_name("B/16"))
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight, std=0.02)
    Classifier(model, Preprocess.preset("google")).save(f"{folder}/model.safetensors")
    Image.linear_gradient("L").convert("RGB").resize((640, 480)).save(f"{folder}/picture.png")
