"""Asks a sandbox to fail with each code that is given, and prints what the Python SDK raised, by code, as JSON."""

import json
import sys

from e2b import Sandbox

KNOWN = {
    "AuthenticationException",
    "FileNotFoundException",
    "InvalidArgumentException",
    "RateLimitException",
    "SandboxException",
    "TimeoutException",
}

sandbox_id, *codes = sys.argv[1:]
sandbox = Sandbox.connect(sandbox_id)


def raised(code):
    try:
        sandbox.files.get_info(f"/fail/{code}")
    except Exception as error:
        # A later SDK may raise a subclass of what the contract knows.
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KNOWN)
    return None


json.dump({code: raised(code) for code in codes}, sys.stdout)
