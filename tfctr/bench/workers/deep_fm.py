"""The sizes of the DeepFM that `bench fit` trains, the same for every system.

Only the standard library: the peers' interpreters import this module too.
"""

HIDDEN_UNITS = (256, 128)
NUM_DENSE = 13
DENSE_LEARNING_RATE = 0.001
SPARSE_LEARNING_RATE = 0.01
