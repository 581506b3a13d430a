"""The commands of `python -m tfctr`: one module each parses its arguments and calls.

TensorFlow is imported when a command runs, so that `--help` does not wait for it.
"""
