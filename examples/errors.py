# An exception is an answer, not a failure of the call; the sandbox goes on.
from e2b import TimeoutException
from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create()
try:
    error = sandbox.run_code("prices = {'tea': 3}\nprices['coffee']").error
    print(f"{error.name}: {error.value}")
    print("in the traceback:", str("prices['coffee']" in error.traceback).lower())

    try:
        sandbox.run_code("while True: pass", timeout=1)
    except TimeoutException:
        print("timed out")

    print("after both:", sandbox.run_code("prices['tea']").text)
finally:
    sandbox.kill()
