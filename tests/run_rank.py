"""One rank of a job that a test starts; see the fixture `run_ranks`.

`run_rank.py FILE FUNCTION ARGUMENTS RESULTS` calls a function of a test file with the
arguments, a list in JSON, and leaves what it returns in RESULTS/<rank>.json.
"""

import importlib.util
import json
import pathlib
import sys

from tfctr import distributed


def main(file, function, arguments, results):
    distributed.init()
    spec = importlib.util.spec_from_file_location("scenarios", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scenarios"] = module
    spec.loader.exec_module(module)
    result = getattr(module, function)(*json.loads(arguments))
    path = pathlib.Path(results) / f"{distributed.rank()}.json"
    path.write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
