"""Shows the figures whose code stdin has as a JSON list; prints each chart as the SDK made it, with its class."""

import enum
import json
import sys

from e2b_code_interpreter import Sandbox


def plain(value):
    """Objects of the SDK as JSON: their attributes, without the data that they were made of."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "__dict__"):
        return {name: plain(each) for name, each in vars(value).items() if not name.startswith("_")}
    return value


with Sandbox.create(*sys.argv[1:]) as sandbox:
    found = []
    for code in json.load(sys.stdin):
        execution = sandbox.run_code(code)
        assert execution.error is None, execution.error
        (result,) = execution.results
        assert result.png
        found.append([type(result.chart).__name__, plain(result.chart)])
print(json.dumps(found))
