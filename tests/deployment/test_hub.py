"""Models on the hub: loaded from a cache in its layout, and uploaded to a local server."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import numpy as np
import pytest

import afield as package
from afield.errors import AfieldError
from tests.data.sources.hub_cache import COMMIT, put


def test_a_model_of_the_hub_predicts_like_its_folder(hub_cache, model_folder):
    files = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    snapshot = put(hub_cache, "ann/spirals", files, kind="model")
    here = package.load(model_folder)
    x = np.full((3, here.about.inputs.stored[0]), 0.5)
    for spec in ("hf:ann/spirals", f"hf:ann/spirals@{COMMIT}"):
        model = package.load(spec)
        assert model.predict_proba(x).tolist() == here.predict_proba(x).tolist()
    # A link that leaves the repository is refused, as in any model folder.
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(model_folder / "model.safetensors")
    with pytest.raises(AfieldError, match="leads out of the folder"):
        package.load("hf:ann/spirals")


def test_a_model_that_is_not_there_is_one_clear_line(hub_cache):
    for spec, message in {
        "hf:ann/none": "cannot be fetched from the hub",
        "hf:ann": "write hf:user/name",
    }.items():
        with pytest.raises(AfieldError, match=message):
            package.load(spec)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files needs."""

    uploaded: dict[str, bytes]

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        host = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            answer = {"url": f"{host}/ann/spirals"}
        elif self.path == "/api/validate-yaml":
            answer = {"warnings": [], "errors": []}
        elif "/preupload/" in self.path:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            answer = {"files": [{"path": name, **modes} for name in names]}
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.uploaded[value["path"]] = base64.b64decode(value["content"])
            answer = {"commitUrl": f"{host}/ann/spirals/commit/{COMMIT}", "commitOid": COMMIT}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    handler = type("Handler", (Hub,), {"uploaded": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_local")
    yield handler.uploaded
    server.shutdown()
    server.server_close()


def test_push_uploads_the_files_of_a_model_and_nothing_else(hub, model_folder, afield):
    (model_folder / "notes.txt").write_text("private")
    code, _, err = afield("push", model_folder, "ann/spirals")
    assert code == 0, err
    assert "ann/spirals" in err
    expected = {p.name: p.read_bytes() for p in model_folder.iterdir()}
    del expected["notes.txt"], expected["held_out.safetensors"]
    assert hub == expected


@pytest.mark.parametrize("name", ["README.md", "distance.safetensors", "model.json"])
def test_push_does_not_follow_links_to_private_files(hub, model_folder, afield, tmp_path, name):
    private = tmp_path / "private"
    (model_folder / name).replace(private)
    (model_folder / name).symlink_to(private)
    code, _, err = afield("push", model_folder, "ann/spirals")
    assert code == 2
    assert f"{name}: a link that leads out of the folder" in err
    assert not hub


def test_push_leaves_out_what_the_description_does_not_list(hub, model_folder, afield):
    about = json.loads((model_folder / "model.json").read_text())
    del about["files"]["distance.safetensors"]
    (model_folder / "model.json").write_text(json.dumps(about))
    code, _, err = afield("push", model_folder, "ann/spirals")
    assert code == 0, err
    assert sorted(hub) == ["README.md", "model.json", "model.safetensors"]


def test_a_hub_that_does_not_answer_is_one_clear_line(model_folder, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_local")
    with pytest.raises(AfieldError, match="cannot be written on the hub"):
        package.push(model_folder, "ann/spirals")


def test_what_cannot_be_pushed_is_refused_first(hub, model_folder, afield):
    assert "write user/name" in afield("push", model_folder, "spirals")[2]
    (model_folder / "model.safetensors").write_bytes(b"changed")
    code, _, err = afield("push", model_folder, "ann/spirals")
    assert code == 2
    assert "SHA-256" in err
    assert not hub
