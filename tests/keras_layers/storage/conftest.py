"""Storages that need what not every machine has."""

import functools
import importlib.util
import shutil
import socket
import subprocess

import pytest

from keras_layers import TieredStorage


@pytest.fixture(scope="session")
def tfra_storage():
    """`TfraStorage`, where TFRA is installed."""
    if importlib.util.find_spec("tensorflow_recommenders_addons") is None:
        pytest.skip("this environment has no TFRA, which goes with the pinned stack")
    from keras_layers import TfraStorage

    return TfraStorage


@pytest.fixture(scope="session")
def hybrid_storage(tfra_storage):
    """`HybridStorage`, where TFRA is installed."""
    from keras_layers import HybridStorage

    return HybridStorage


@pytest.fixture
def small_hybrid_storage(hybrid_storage, tmp_path):
    """Makes a `HybridStorage` of which next to nothing is hot, or in memory."""
    return lambda: hybrid_storage(10, cold=TieredStorage("2KB", tmp_path))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """The port of a Redis server of our own."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server: install the package of that name")
    folder = tmp_path_factory.mktemp("redis")
    with socket.socket() as held:
        # Till the server listens, nobody else is given the port. It may bind it as
        # well, since both let others have their address.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        server = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert any("Ready to accept connections" in line for line in server.stdout)
    yield port
    server.terminate()
    server.communicate()


@pytest.fixture(scope="session")
def redis_storage(tfra_storage, redis_server):
    """Makes a `TfraStorage` over that server."""
    settings = {"redis_host_ip": ["127.0.0.1"], "redis_host_port": [redis_server]}
    return functools.partial(tfra_storage, "redis", redis=settings)
