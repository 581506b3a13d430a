"""Refuses what a server with TensorFlow alone cannot run."""

from collections.abc import Collection
from typing import Any

# Those call back into the Python of the process that made the graph.
_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def check_ops(function: Any, model: str, linked: Collection[str] = ()) -> None:
    """Raises `ValueError` if a concrete function needs an op that is not built in.

    Args:
        function: Concrete function.
        model: String. Name of the model.
        linked: Strings. Ops that servers know besides.
    """
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    # A namespace such as "Tfctr>" is what libraries put before the names of their ops.
    foreign = {n.op for n in nodes if ">" in n.op or n.op in _PYTHON_OPS}
    foreign |= {n.op for n in nodes if n.op.startswith("Horovod")}
    foreign -= set(linked)
    if foreign:
        raise ValueError(
            f"Model '{model}' is exported for servers that know the ops of TensorFlow "
            f"alone. Received: a model that predicts with {sorted(foreign)}. Of a "
            "tf.function inside of the model that was called before the export, take "
            "the decorator off; replace other layers by ones of TensorFlow's own ops."
        )
