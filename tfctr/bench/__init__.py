"""The yardsticks: tfctr and its peers on one workload, in one run.

This package imports nothing when it is imported, since the peers' interpreters, which
have neither tfctr nor its TensorFlow, read `workload` and `workers` too.
"""
