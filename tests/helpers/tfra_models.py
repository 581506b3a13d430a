"""Models as users of TFRA write them, in a process of their own that has Keras 2.

`tfra_models.py FUNCTION ARGUMENTS RESULT` calls a function of this file with a dict in
JSON, and leaves what it returns in the file RESULT. See `run` for tests.
"""

import contextlib
import io
import json
import os
import pathlib
import runpy
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERAS_2 = pathlib.Path(sys.prefix) / "tf_keras"
DIM = 4


def run(function, path, **arguments):
    """Calls a function of this file in a new process, and returns its result."""
    result = path / f"{function}.json"
    command = [sys.executable, __file__, function, json.dumps(arguments), result]
    paths = os.pathsep.join(map(str, (ROOT, KERAS_2)))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(result.read_text())


def data(num_batches=10, batch_size=16):
    """Users, items and labels, `(n, 2)` and `(n, 1)`."""
    rng = np.random.default_rng(0)
    n = num_batches * batch_size
    users, items = rng.integers(-30, 30, n), rng.zipf(1.5, n) % 50 + 2**40
    labels = (users * items % 3 == 0).astype(np.float32)
    return np.stack([users, items], axis=1), labels[:, None]


class Model:
    """Logistic regression on embeddings of users, and perhaps items, with its parts."""

    def __init__(self, creator, optimizer, names=("user", "item"), policy=None):
        import tensorflow as tf
        import tf_keras
        from tensorflow_recommenders_addons import dynamic_embedding as de

        # TFRA finds tables by their names, also those of another model.
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(0)
        self.optimizer = de.DynamicEmbeddingOptimizer(
            {
                "legacy_adam": tf_keras.optimizers.legacy.Adam,
                "legacy_adagrad": tf_keras.optimizers.legacy.Adagrad,
                "legacy_ftrl": tf_keras.optimizers.legacy.Ftrl,
                "adam": tf_keras.optimizers.Adam,
            }[optimizer](0.05)
        )
        self.layers = [
            de.keras.layers.Embedding(
                DIM,
                name=name,
                devices=["/CPU:0"],
                initializer=tf.constant_initializer(0.1),
                restrict_policy=policy,
                kv_creator=creator,
            )
            for name in names
        ]
        ids = tf_keras.Input((2,), dtype=tf.int64)
        parts = [layer(ids[:, i]) for i, layer in enumerate(self.layers)]
        logits = tf_keras.layers.Dense(1)(tf.concat(parts, axis=1))
        self.keras = tf_keras.Model(ids, logits)
        self.keras.compile(self.optimizer, tf_keras.losses.BinaryCrossentropy(True))
        self.checkpoint = tf.train.Checkpoint(
            model=self.keras, optimizer=self.optimizer
        )

    def fit(self, epochs=1):
        fitted = self.keras.fit(
            *data(), epochs=epochs, batch_size=16, shuffle=False, verbose=0
        )
        return fitted.history["loss"]

    def slots(self, layer):
        # `get_slot_variables` of TFRA knows no legacy optimizers.
        if not hasattr(self.optimizer, "get_slot_names"):
            return layer.params.get_slot_variables(self.optimizer)
        names = self.optimizer.get_slot_names()
        return [self.optimizer.get_slot(layer.shadow, name).params for name in names]

    def rows(self):
        """The rows of every table: weights, slots, status; each by key."""
        tables = {}
        for layer in self.layers:
            for variable in [layer.params, *self.slots(layer), *status(layer)]:
                keys, values = (part.numpy().tolist() for part in variable.export())
                tables[variable.name] = sorted(zip(keys, values, strict=True))
        return tables


def status(layer):
    policy = layer.params.restrict_policy
    return [] if policy is None else [policy.status]


def creator(kind, saver, tiers=None):
    from keras_layers.storage.tfra import TieredTableCreator
    from keras_layers.storage.tfra.import_guard import import_tfra

    de = import_tfra()
    saver = de.FileSystemSaver() if saver else None
    if kind == "tfra":
        return de.CuckooHashTableCreator(saver=saver)
    return TieredTableCreator(**(tiers or {}), saver=saver)


def compare(directory, optimizer, saver, names):
    """Trains on TFRA's tables and on ours, and resumes both on ours."""
    from tensorflow_recommenders_addons import dynamic_embedding as de

    result = {}
    for kind in ("tfra", "tiered"):
        tiers = {"ram": "16KB", "ssd": f"{directory}/ssd"}
        options = (optimizer, names, de.FrequencyRestrictPolicy)
        model = Model(creator(kind, saver, tiers), *options)
        losses, trained = model.fit(epochs=2), model.rows()
        for layer in model.layers:
            layer.params.restrict(20)
        restricted = model.rows()
        path = model.checkpoint.save(f"{directory}/{kind}/checkpoint")
        result[kind] = {
            "losses": losses,
            "trained": trained,
            "restricted": restricted,
            "continued": model.fit(),
        }
        if kind == "tiered" and not saver:
            save_and_load(model, f"{directory}/saved", result)
        if kind == "tiered" and saver:
            result["refusal"] = refusal(model.keras.save, f"{directory}/no")

        copy = Model(creator("tiered", saver), *options)
        copy.fit()  # Makes the slots, and rows that have to go.
        copy.checkpoint.restore(path)
        result[kind] |= {"restored": copy.rows(), "resumed": copy.fit()}
    return result


def restrict_by_age(directory):
    """Trains on our tables, and keeps the rows that a policy takes for the newest."""
    from tensorflow_recommenders_addons import dynamic_embedding as de

    tiers = {"ram": "16KB", "ssd": f"{directory}/ssd"}
    options = ("legacy_adam", ["user"], de.TimestampRestrictPolicy)
    model = Model(creator("tiered", saver=False, tiers=tiers), *options)
    result = {"began": int(time.time())}
    model.fit()
    result |= {"ended": int(time.time()), "trained": model.rows()}
    [layer] = model.layers
    [stamps] = status(layer)
    # Of rows of one second, TFRA removes any.
    ids, _ = stamps.export()
    stamps.upsert(ids, 2**30 + newness(ids)[:, None])
    layer.params.restrict(20)
    return {**result, "restricted": model.rows()}


def newness(ids):
    """A number of each id, in no order of theirs."""
    return np.asarray(ids, np.int32) * 7919 % 10007


def save_and_load(model, path, result):
    """Leaves in `result` what a model predicts, and what its SavedModel does."""
    import tensorflow as tf

    options = tf.saved_model.SaveOptions(namespace_whitelist=["TFRA", "Tfctr"])
    model.keras.save(path, save_format="tf", options=options)
    result["predicted"] = model.keras.predict(data()[0], verbose=0).ravel().tolist()
    loaded = tf.saved_model.load(path)
    ids = tf.constant(data()[0], tf.int64)
    (scores,) = loaded.signatures["serving_default"](ids).values()
    result["served"] = scores.numpy().ravel().tolist()


def save_for_import(directory, optimizers):
    """Saves models as tensors and as files, and makes one more step with each."""
    import tensorflow as tf

    result = {}
    for optimizer in optimizers:
        model = Model(creator("tfra", saver=False), optimizer)
        model.fit()
        tables = model.rows()
        path = model.checkpoint.save(f"{directory}/{optimizer}/checkpoint")
        for layer in model.layers:
            for variable in [layer.params, *model.slots(layer)]:
                variable.save_to_file_system(f"{directory}/{optimizer}_files")
        user = model.layers[0]
        with tf.GradientTape() as tape:
            rows = user(tf.constant(STEP_IDS, tf.int64))
            loss = tf.reduce_sum(rows * step_gradient())
        variables = user.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        result[optimizer] = {
            "path": path,
            "tables": tables,
            "steps": int(model.optimizer.iterations) - 1,
            "after": model.rows()["user-parameter"],
        }
    return result


# Twice one id, and one that is new.
STEP_IDS = [3, -7, 3, 29, 10**6]


def step_gradient():
    return np.arange(len(STEP_IDS) * DIM, dtype=np.float32).reshape(-1, DIM) / 7 - 1


def refusal(call, *arguments):
    try:
        call(*arguments)
    except ValueError as error:
        return str(error)
    return None


def load_and_predict(directory):
    """Predicts with a SavedModel where our library is loaded, and TFRA is not."""
    import tensorflow as tf
    import tf_keras  # noqa: F401  Of its optimizers, slots were saved.

    from tfctr_ops import library

    library.load()
    loaded = tf.saved_model.load(directory)
    ids = tf.constant(data()[0], tf.int64)
    (scores,) = loaded.signatures["serving_default"](ids).values()
    assert "tensorflow_recommenders_addons" not in sys.modules
    return scores.numpy().ravel().tolist()


def run_script(script, arguments):
    """Runs a script and returns what it prints."""
    sys.argv = [script, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


def leave_keras_2_alone():
    """Autograph takes `tf_keras` for a user's code, and its time to convert it."""
    import tensorflow as tf
    import tf_keras

    for owner, *names in (
        (tf_keras.Model, "__call__", "train_step", "predict_step"),
        (tf_keras.layers.Layer, "__call__"),
    ):
        for name in names:
            method = tf.autograph.experimental.do_not_convert(getattr(owner, name))
            setattr(owner, name, method)


if __name__ == "__main__":
    FUNCTION, ARGUMENTS, RESULT = sys.argv[1:]
    leave_keras_2_alone()
    result = globals()[FUNCTION](**json.loads(ARGUMENTS))
    pathlib.Path(RESULT).write_text(json.dumps(result))
