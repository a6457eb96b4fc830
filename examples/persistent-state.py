# Variables, imports and functions stay from one call to the next.
from e2b_code_interpreter import Sandbox

sandbox = Sandbox.create()
try:
    sandbox.run_code("import math\nx = 42")
    sandbox.run_code("def area(radius): return math.pi * radius**2")
    execution = sandbox.run_code("print(x)\nround(area(2), 3)")
    print("printed:", "".join(execution.logs.stdout).strip())
    print("result: ", execution.text)
finally:
    sandbox.kill()
