"""Asks a running TensorFlow Serving for predictions, by its REST API.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import pathlib
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import requests

_TIMEOUT_SECONDS = 60.0

Arrays = dict[str, Any]


def model_url(server: str, export: pathlib.Path) -> str:
    """Returns the URL of an export on a server.

    Args:
        server: URL of the server, or of a model or version there, which stays as it is.
        export: Path of the export, `MODEL/VERSION`.

    Raises:
        ValueError: If it is no such URL, or the path names no version.
    """
    if not _is_url(server):
        raise ValueError(
            "`server` must be a URL such as 'http://localhost:8501'. "
            f"Received: server={server!r}."
        )
    if urllib.parse.urlsplit(server).path.rstrip("/"):
        return server.rstrip("/")
    if not export.name.isdigit():
        raise ValueError(
            "The directory of an export is named by its version, a number, for a "
            f"server to find it. Received: '{export}'. Name the model: "
            f"{server.rstrip('/')}/v1/models/MODEL."
        )
    model = urllib.parse.quote(export.parent.name)
    return f"{server.rstrip('/')}/v1/models/{model}/versions/{export.name}"


def _is_url(server: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(server)
        _ = parts.port  # Raises if it is none.
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def rest_client(url: str, outputs: Sequence[str]) -> Callable[[Arrays], Arrays]:
    """Returns a function that answers requests, from any thread.

    Args:
        url: URL of a model, or of a version of it.
        outputs: Names of the tensors of an answer. Of a single one, Serving sends no
            name.
    """

    def ask(request: Arrays) -> Arrays:
        inputs = {name: _to_json(array) for name, array in request.items()}
        body: Any = {"signature_name": "serving_default", "inputs": inputs}
        try:
            response = requests.post(
                f"{url}:predict", json=body, timeout=_TIMEOUT_SECONDS
            )
        except (requests.ConnectionError, requests.Timeout) as error:
            raise OSError(
                f"TensorFlow Serving must answer at '{url}'. Received: {error}. Start "
                "it with --rest_api_port, or name another URL: --server URL."
            ) from error
        answer = _answer(url, response)
        if not isinstance(answer, dict):
            answer = {outputs[0]: answer}
        if sorted(answer) != sorted(outputs):
            raise ValueError(
                f"The model at '{url}' must answer with {sorted(outputs)}. "
                f"Received: {sorted(answer)}. It is another export than the one that "
                "is checked."
            )
        return {name: np.asarray(value) for name, value in answer.items()}

    return ask


def _answer(url: str, response: requests.Response) -> Any:
    """Returns the outputs of a response."""
    try:
        answer = response.json()
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    if response.ok and "outputs" in answer:
        return answer["outputs"]
    received = f"status {response.status_code}, {answer.get('error', 'no error text')}"
    if response.status_code == requests.codes.not_found:
        raise ValueError(
            f"The server must have loaded a model at '{url}'. Received: {received}. "
            "Name one that it has: --server http://HOST:PORT/v1/models/MODEL."
        )
    raise ValueError(
        f"The model at '{url}' must take the requests of the export. "
        f"Received: {received}."
    )


def _to_json(array: Any) -> Any:
    if array.dtype.kind in "SO":
        # Strings may hold any bytes.
        flat = [{"b64": base64.b64encode(text).decode()} for text in array.ravel()]
        return np.array(flat, object).reshape(array.shape).tolist()
    return array.tolist()
