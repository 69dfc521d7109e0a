"""Fetching from a server, a hub and a cache, with everything that goes wrong on the way."""

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny
from vitreous.base.errors import WeightsError
from vitreous.classifier import Classifier, load
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights import google, hub
from vitreous.weights.convert import convert

pytest.importorskip("pooch")
pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server:
    """Serves `files` by path; a path in `broken` breaks off half-way. `asked` counts."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.broken: set[str] = set()
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(f"{request.command} {path}")
        content = self.files.get(path)
        request.send_response(200 if content is not None else 404)
        if content is None:
            kind = "EntryNotFound" if "/resolve/" in path and "/nobody/" not in path else "RepoNotFound"
            request.send_header("X-Error-Code", kind)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        request.send_header("Content-Length", str(len(content)))
        request.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        request.send_header("X-Repo-Commit", COMMIT)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content[: len(content) // 2] if path in self.broken else content)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return tmp_path / "cache"


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_path_is_itself(tmp_path: Path) -> None:
    assert hub.fetch(tmp_path / "model.npz") == tmp_path / "model.npz"
    assert hub.fetch("folder/hf.safetensors") == Path("folder/hf.safetensors")


def test_an_address_is_fetched_once_and_its_checksum_told(
    server: Server, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.files["/models/b.npz"] = b"weights" * 1000
    url, digest = f"{server.url}/models/b.npz", hashlib.sha256(b"weights" * 1000).hexdigest()
    with caplog.at_level(logging.INFO, "vitreous"):
        path = hub.fetch(url)
    assert path.read_bytes() == b"weights" * 1000
    assert path == cache / "weights" / server.url.removeprefix("http://").replace(":", "_") / "models" / "b.npz"
    assert f"{url}#sha256={digest}" in caplog.text
    server.files.clear()
    assert hub.fetch(url) == hub.fetch(f"{url}#sha256={digest}") == path
    assert server.asked == ["GET /models/b.npz"]


def test_a_checksum_that_differs_is_an_error_and_nothing_is_kept(server: Server, cache: Path) -> None:
    server.files["/b.npz"] = b"other weights"
    with pytest.raises(WeightsError, match="sha256 0000"):
        hub.fetch(f"{server.url}/b.npz#sha256={'0' * 64}")
    assert files_in(cache) == []
    with pytest.raises(WeightsError, match="sha256= and 64 hexadecimal digits"):
        hub.fetch(f"{server.url}/b.npz#md5=1")


def test_a_file_that_changed_on_the_server_is_fetched_anew(server: Server, cache: Path) -> None:
    server.files["/b.npz"] = b"old"
    hub.fetch(f"{server.url}/b.npz")
    server.files["/b.npz"] = b"new"
    assert hub.fetch(f"{server.url}/b.npz#sha256={hashlib.sha256(b'new').hexdigest()}").read_bytes() == b"new"
    assert files_in(cache) == ["b.npz"]


def test_half_a_file_is_never_taken_for_a_whole_one(server: Server, cache: Path) -> None:
    server.files["/b.npz"] = bytes(range(256)) * 10_000
    server.broken.add("/b.npz")
    with pytest.raises(WeightsError, match=r"broke off.*try again"):
        hub.fetch(f"{server.url}/b.npz")
    assert files_in(cache) == []
    server.broken.clear()
    assert hub.fetch(f"{server.url}/b.npz").read_bytes() == server.files["/b.npz"]
    assert files_in(cache) == ["b.npz"]


def test_a_terminal_sees_the_progress(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/b.npz"] = bytes(5_000_000)
    hub.fetch(f"{server.url}/b.npz")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    hub.fetch(f"{server.url}/b.npz?again")
    assert "5.0/5.0 MB" in capsys.readouterr().err


def test_what_is_not_there_or_not_reachable_is_said_in_one_line(server: Server, cache: Path) -> None:
    with pytest.raises(WeightsError, match=r"no such file at http://127\.0\.0\.1"):
        hub.fetch(f"{server.url}/none.npz")
    with pytest.raises(WeightsError, match="no network") as caught:
        hub.fetch("http://127.0.0.1:9/models/b.npz")
    place = cache / "weights" / "127.0.0.1_9" / "models" / "b.npz"
    assert f"put it at {place}, or give the path" in str(caught.value)
    assert "\n" not in str(caught.value)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"put there by hand")
    assert hub.fetch("http://127.0.0.1:9/models/b.npz") == place


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("http://example.com/b.npz", "use https"),
        ("https://example.com/", "names no file"),
        ("https://example.com/a/../b.npz", "names no file"),
        ("hf:owner", "hf:owner/name@revision"),
        ("hf:owner/", "hf:owner/name@revision"),
        ("google:B/16", "no published checkpoint.*vitreous models"),
        (
            "google:augreg/B_16-i21k-medium1-wd_0.1-lr_0.03-385",
            "mean 'augreg/B_16-i21k-medium1-wd_0.1-lr_0.03-384'",
        ),
    ],
)
def test_sources_that_cannot_be_are_refused_before_any_network(cache: Path, source: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        hub.fetch(source)


@pytest.mark.parametrize(
    ("package", "source"), [("pooch", "https://example.com/b.npz"), ("huggingface_hub", "hf:owner/name")]
)
def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, package: str, source: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(WeightsError, match=rf"{package}: pip install 'vitreous\[hub\]'"):
        hub.fetch(source)


def test_an_official_checkpoint_by_name(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "GOOGLE", f"{server.url}/vit_models/")
    model = tiny()
    google.write(cache / "tiny.npz", model.config, model.state_dict())
    path = "/vit_models/imagenet21k+imagenet2012/ViT-B_16-224.npz"
    server.files[path] = (cache / "tiny.npz").read_bytes()
    clf = load("google:imagenet21k+imagenet2012/ViT-B_16-224")
    assert clf.provenance["file"] == "ViT-B_16-224.npz"
    assert clf.provenance["source"] == "google:imagenet21k+imagenet2012/ViT-B_16-224"
    images = torch.zeros(1, 3, 32, 32)
    assert torch.equal(clf.model(images), model(images))


def cached(folder: Path, *files: str) -> Path:
    """A repository as `huggingface_hub` keeps it; returns its snapshot."""
    snapshot = folder / "models--owner--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "models--owner--name" / "refs").mkdir()
    (folder / "models--owner--name" / "refs" / "main").write_text(COMMIT)
    for name in files:
        (snapshot / name).write_bytes(b"{}")
    return snapshot


@pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_without_a_network_the_hubs_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    snapshot = cached(tmp_path, "config.json", weights)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert hub.fetch("hf:owner/name") == hub.fetch("hf:owner/name@main") == snapshot
    assert hub.fetch(f"hf:owner/name/{weights}") == snapshot / weights
    for source in ("hf:owner/other", "hf:owner/name@v2", "hf:owner/name/other.npz"):
        with pytest.raises(WeightsError, match=r"not in the cache.*HF_HUB_OFFLINE.*hf download owner/.*path") as caught:
            hub.fetch(source)
        assert "\n" not in str(caught.value)


def test_a_model_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(gelu="erf", layer_norm_eps=1e-12)
    preprocess = Preprocess.preset("huggingface", size=model.config.image_size)
    convert(Classifier(model, preprocess, list("abcdefg")), cached(tmp_path), to="huggingface")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    clf = load("hf:owner/name")
    assert (clf.labels, clf.provenance["source"]) == (tuple("abcdefg"), "hf:owner/name")
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(clf.model(images), model(images), rtol=0, atol=1e-5)


def test_a_repository_without_weights_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, "config.json")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor pytorch_model\.bin.*hf:owner/name/FILE"):
        hub.fetch("hf:owner/name")


def test_a_hub(server: Server, tmp_path: Path) -> None:
    """Only what is needed is fetched, safetensors where there are any; errors are one line."""
    repositories = {
        "owner/both": ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "README.md"],
        "owner/old": ["config.json", "preprocessor_config.json", "pytorch_model.bin"],
        "owner/half": ["config.json", "model.safetensors"],
    }
    for name, files in repositories.items():
        entries: list[dict[str, Any]] = [{"type": "file", "path": f, "oid": "0" * 40, "size": len(f)} for f in files]
        info = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}
        for revision in ("main", COMMIT):
            server.files[f"/api/models/{name}/revision/{revision}"] = json.dumps(info).encode()
            server.files[f"/api/models/{name}/tree/{revision}"] = json.dumps(entries).encode()
            for file in files:
                server.files[f"/{name}/resolve/{revision}/{file}"] = file.encode()
    server.broken.add(f"/owner/half/resolve/{COMMIT}/model.safetensors")
    script = """
import sys
from vitreous.base.errors import WeightsError
from vitreous.weights import hub
for source in sys.argv[1:]:
    try:
        print(*sorted(path.name for path in hub.fetch(source).iterdir()))
    except WeightsError as error:
        print("WeightsError:", error)
"""
    sources = [f"hf:{name}" for name in repositories] + ["hf:nobody/none"]
    settings = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "")
    run = subprocess.run(
        [sys.executable, "-c", script, *sources],
        env=os.environ | proxies | settings,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    both, old, half, nobody = run.stdout.splitlines()
    assert both == "config.json model.safetensors"
    assert old == "config.json preprocessor_config.json pytorch_model.bin"
    assert half.startswith("WeightsError: hf:owner/half: the transfer broke off")
    assert nobody.startswith("WeightsError: hf:nobody/none: no such repository")
    assert not any("tf_model" in line or "README" in line for line in server.asked)
    assert "%|" not in run.stderr  # no bars where nobody watches
