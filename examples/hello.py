# Runs one line of Python in a new sandbox.
from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create()
try:
    execution = sandbox.run_code("print('hello, world')")
    print("".join(execution.logs.stdout))
finally:
    sandbox.kill()
