"""`check(server=...)`: the REST API of TensorFlow Serving, as its page describes it."""

import base64
import http.server
import json
import pathlib
import re
import socket
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr import cli
from tfctr.export import check, saved_model
from tfctr.export.rest import model_url


class Handler(http.server.BaseHTTPRequestHandler):
    """The predict API in columns, around SavedModels in `models`, by path."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(self.path)
        status, answer = self.predict(body)
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def predict(self, body):
        path, _, verb = self.path.rpartition(":")
        if self.server.broken is not None:
            return self.server.broken
        if verb != "predict" or path not in self.server.models:
            return 404, {"error": f"Servable not found for request: {path}"}
        signature = self.server.models[path].signatures[body["signature_name"]]
        specs = signature.structured_input_signature[1]
        if set(body["inputs"]) != set(specs):
            return 400, {"error": f"input tensors must be {sorted(specs)}"}
        tensors = {
            name: tf.constant(decode(values), specs[name].dtype)
            for name, values in body["inputs"].items()
        }
        outputs = {n: v.numpy().tolist() for n, v in signature(**tensors).items()}
        if len(outputs) == 1:
            [outputs] = outputs.values()
        return 200, {"outputs": outputs}

    def log_message(self, *arguments):
        pass


def decode(values):
    if isinstance(values, list):
        return [decode(value) for value in values]
    return base64.b64decode(values["b64"]) if isinstance(values, dict) else values


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64


@pytest.fixture
def server():
    server = Server(("localhost", 0), Handler)
    server.models, server.broken, server.asked = {}, None, []
    server.url = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def named(path, outputs=1):
    x = keras.Input((2,), name="x")
    heads = {f"y{n}": keras.layers.Dense(1, name=f"y{n}")(x) for n in range(outputs)}
    model = keras.Model(x, heads, name="small")
    return saved_model(model, path, examples=np.random.default_rng(0).random((5, 2)))


def serve(server, path, model="ads", version="1"):
    url = f"/v1/models/{model}/versions/{version}"
    server.models[url] = server.models[url.partition("/versions")[0]] = (
        tf.saved_model.load(str(path))
    )


def test_a_server_is_asked_for_that_version(clicks, batch, server, tmp_path, capsys):
    """Ragged inputs, strings and all; an answer of one output has no name."""
    path = saved_model(clicks, tmp_path / "ads" / "1", examples=batch(6, largest=100))
    serve(server, path)
    file = tmp_path / "result.json"
    arguments = [str(path), "--server", server.url, "--json", str(file)]
    assert cli.main(["check-export", *arguments]) == 0
    result = json.loads(file.read_text())
    assert result["is_equal"] and result["server"] == server.url
    assert result["rows"] == 6 and result["requests"] == 800
    assert max(result["max_difference"], result["max_difference_of_threads"]) < 1e-6
    assert set(server.asked) == {"/v1/models/ads/versions/1:predict"}
    assert f"353 rows in float32, of {server.url}" in capsys.readouterr().out


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    return named(tmp_path_factory.mktemp("two") / "ads" / "1", outputs=2)


def test_several_outputs_come_by_name(export, server):
    serve(server, export)
    result = check(export, server=f"{server.url}/v1/models/ads", threads=2)
    assert result["is_equal"]
    assert set(server.asked) == {"/v1/models/ads:predict"}


def test_another_model_on_the_server_is_not_equal(export, server, tmp_path):
    keras.utils.set_random_seed(7)
    serve(server, named(tmp_path / "1", outputs=2))
    assert not check(export, server=server.url, threads=1)["is_equal"]


def refused(message, export, url, error=ValueError):
    with pytest.raises(error, match=re.escape(message)):
        check(export, server=url, threads=1)


def test_a_server_that_does_not_answer_is_told(export):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # Nobody else listens there now.
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        message = f"TensorFlow Serving must answer at '{url}/v1/models/ads/versions/1'."
        refused(message, export, url, OSError)


def test_what_a_server_refuses_is_told(export, server, tmp_path):
    url = server.url
    message = (
        f"must have loaded a model at '{url}/v1/models/ads/versions/1'. Received: "
        "status 404, Servable not found for request: /v1/models/ads/versions/1. Name"
    )
    refused(message, export, url)
    z = keras.Input((2,), name="z")
    serve(server, saved_model(keras.Model(z, keras.layers.Dense(1)(z)), tmp_path / "1"))
    refused("Received: status 400, input tensors must be ['z'].", export, url)
    serve(server, named(tmp_path / "2"))
    refused("must answer with ['y0', 'y1']. Received: ['y0'].", export, url)
    for broken in [(500, b"<html>"), (200, b"[]"), (200, b'{"predictions": []}')]:
        server.broken = broken
        refused(f"status {broken[0]}, no error text.", export, url)


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8501", "http://", "grpc://localhost:8500"),
        *("http://localhost:99999", "http://[::1"),
    ],
)
def test_what_is_no_url_is_refused(export, url):
    refused(f"such as 'http://localhost:8501'. Received: server={url!r}.", export, url)


def test_a_directory_without_a_version_needs_the_model():
    path = pathlib.Path("/ads/newest")
    message = "'/ads/newest'. Name the model: http://host/v1/models/MODEL."
    with pytest.raises(ValueError, match=re.escape(message)):
        model_url("http://host/", path)
    assert model_url("http://host/v1/models/a/", path) == "http://host/v1/models/a"
    assert (
        model_url("http://host/", path.parent / "the ads" / "12")
        == "http://host/v1/models/the%20ads/versions/12"
    )
