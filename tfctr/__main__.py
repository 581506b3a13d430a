"""Runs the command line: `python -m tfctr`."""

import sys

from tfctr.cli import main

sys.exit(main())
