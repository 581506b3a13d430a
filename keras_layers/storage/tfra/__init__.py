"""Tables of TensorFlow Recommenders Addons, which is imported when it is first used."""

from keras_layers.storage.tfra.import_guard import import_tfra
from keras_layers.storage.tfra.tfra_storage import TfraStorage

__all__ = ["TfraStorage", "import_tfra"]
