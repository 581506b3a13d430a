"""`call_eagerly`: for what ends with a Python object, amid whatever is going on."""

import threading
from collections.abc import Callable

import tensorflow as tf


def call_eagerly(function: Callable[[], object]) -> None:
    """Calls a function outside of all graphs.

    Garbage is collected anywhere: `tf.init_scope` leaves functions that are being
    traced, but no plain `tf.Graph`, such as `tf.saved_model.save` fills.
    """
    with tf.init_scope():
        if tf.executing_eagerly():
            function()
            return
    # A thread has its own graphs, and a new one has none.
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
