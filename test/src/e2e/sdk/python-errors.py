"""What the Python SDK raises, by what was done, as JSON.

codes SANDBOX CODE ...: a sandbox is asked to fail with each code.
statuses UNKNOWN_SANDBOX UNKNOWN_KEY PAUSED_SANDBOX: the API refuses what has its own status, on a server that is full.
"""

import json
import sys

from e2b import Sandbox

KNOWN = {
    "AuthenticationException",
    "FileNotFoundException",
    "InvalidArgumentException",
    "RateLimitException",
    "SandboxException",
    "SandboxNotFoundException",
    "TimeoutException",
}


def outcome(act):
    try:
        return act()
    except Exception as error:
        # A later SDK may raise a subclass of what the contract knows.
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KNOWN)


def codes(sandbox_id, *names):
    sandbox = Sandbox.connect(sandbox_id)
    return {name: outcome(lambda: sandbox.files.get_info(f"/fail/{name}")) for name in names}


def statuses(unknown_id, unknown_key, paused_id):
    return {
        "unknown key": outcome(lambda: Sandbox.create(api_key=unknown_key)),
        "unknown sandbox": outcome(lambda: Sandbox.get_info(unknown_id)),
        "kill of an unknown sandbox": outcome(lambda: Sandbox.kill(unknown_id)),
        "pause of a paused sandbox": outcome(lambda: Sandbox.pause(paused_id)),
        "one sandbox too many": outcome(lambda: Sandbox.create()),
        "too long a time-out": outcome(lambda: Sandbox.create(timeout=2**31 - 1)),
    }


what, *words = sys.argv[1:]
json.dump({"codes": codes, "statuses": statuses}[what](*words), sys.stdout)
