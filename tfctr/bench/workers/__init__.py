"""One module per measured system, each run in a process of its own.

A module defines `open_cases(options) -> Cases`. The peers' modules import their
framework, NumPy, `tfctr.bench.workload` and `tfctr.bench.workers` only: `launch.py`
makes these importable where tfctr is not installed.
"""
