# Output, results and errors are told while the code runs.
from e2b_code_interpreter import Sandbox

CODE = """
import sys, time
from IPython.display import display
for step in range(3):
    print("step", step, flush=True)
    time.sleep(0.1)
print("careful", file=sys.stderr)
display({"text/plain": "half way"}, raw=True)
1 / 0"""

sandbox = Sandbox.create()
try:
    sandbox.run_code(
        CODE,
        # Pieces as they come, which need not be lines.
        on_stdout=lambda message: print(message.line, end=""),
        on_stderr=lambda message: print(message.line, end=""),
        on_result=lambda result: print("result:", result.text),
        on_error=lambda error: print("error: ", error.name),
    )
finally:
    sandbox.kill()
