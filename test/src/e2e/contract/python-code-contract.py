"""Meets the rows of the code interpreter's contract with the Python SDK; prints what went wrong by row, as JSON."""

import base64
import json
import os
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox
from e2b_code_interpreter import charts

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
SLOWEST = 20
QUOTED = "it's \"so\"\n$HOME `x` \\ ''' é😀"

ROWS = []


def row(title):
    def add(meets):
        ROWS.append((title, meets))
        return meets

    return add


def equal(actual, expected, what=""):
    assert actual == expected, f"{what}: {actual!r}, not {expected!r}"


def raised(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


sandbox = Sandbox.create(envs={"GLOBAL": "g"}, timeout=180)
context = sandbox.create_code_context(cwd="/tmp")


def run(code, **options):
    return sandbox.run_code(code, **{"context": context, "timeout": SLOWEST, **options})


def value(code, **options):
    execution = run(code, **options)
    assert execution.error is None, execution.error
    return execution.text


def printed(code, **options):
    return "".join(sandbox.run_code(code, timeout=SLOWEST, **options).logs.stdout)


def bare(path, body=None, method=None):
    """What the SDK does not show."""
    headers = {
        "Content-Type": "application/json",
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": "49999",
        "X-Access-Token": sandbox._envd_access_token,
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@row("the seven checks of the original's rig")
def _():
    code = sandbox.run_code
    equal(code("print('hello')").logs.stdout, ["hello\n"], "1 hello")
    stored = code("x = 42")
    equal([stored.logs.stdout, stored.results], [[], []], "2 state is set")
    equal(code("print(x)").logs.stdout, ["42\n"], "3 state is read")
    array = code("import numpy as np; np.array([1,2,3])").results
    equal([(each.text, each.is_main_result) for each in array], [("array([1, 2, 3])", True)], "4 numpy")
    frame = code("import pandas as pd; display(pd.DataFrame({'a':[1,2], 'b':[3,4]}))").results[0]
    assert "<table" in frame.html, "5 a DataFrame as HTML"
    plot = code("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()").results[0]
    equal(base64.b64decode(plot.png)[:8], PNG_MAGIC, "6 a plot as PNG")
    error = code("undefined_variable").error
    equal([error.name, error.value], ["NameError", "name 'undefined_variable' is not defined"], "7 an exception")
    assert "NameError" in error.traceback


@row("E.3 GET /health: 200 and the JSON string OK")
def _():
    equal(bare("/health"), (200, '"OK"'))


@row("E.3 POST /execute: 200, chunked, without a content type; 400, 404, 422, 500")
def _():
    both = {"code": "1", "context_id": "a", "language": "python"}
    equal(bare("/execute", both), (400, "Only one of context_id or language can be provided"))
    unknown = type(context)("no-such-context", "python", "/")
    assert "Context no-such-context not found" in raised(NotFoundException, lambda: run("1", context=unknown))
    refused = raised(SandboxException, lambda: sandbox.run_code("1", language="cobol"))
    assert "The 'cobol' kernel is not available." in refused, refused
    equal(bare("/execute", {})[0], 422)


@row("E.3 POST /contexts: 200 with id, language and cwd; 422, 500")
def _():
    equal([context.language, context.cwd, len(context.id)], ["python", "/tmp", 36])
    raised(SandboxException, lambda: sandbox.create_code_context(language="cobol"))
    equal(bare("/contexts", {"cwd": 1})[0], 422)


@row("E.3 GET /contexts: 200, in the order of their creation, python and javascript first")
def _():
    made = sandbox.create_code_context(language="bash")
    listed = sandbox.list_code_contexts()
    equal([each.language for each in listed[:2]], ["python", "javascript"])
    known = [(each.id, each.language, each.cwd) for each in (context, made)]
    equal([(each.id, each.language, each.cwd) for each in listed[2:]], known)
    sandbox.remove_code_context(made)


@row("E.3 POST /contexts/{id}/restart: 200 null, 404, 500")
def _():
    sandbox.files.make_dir("/tmp/row-e3")
    made = sandbox.create_code_context(language="bash", cwd="/tmp/row-e3")
    sandbox.restart_code_context(made)
    sandbox.files.remove("/tmp/row-e3")
    refused = raised(SandboxException, lambda: sandbox.restart_code_context(made))
    assert f"Failed to restart context {made.id}" in refused, refused
    sandbox.remove_code_context(made)
    raised(NotFoundException, lambda: sandbox.restart_code_context(made))


@row("E.3 DELETE /contexts/{id}: 200 null, 404")
def _():
    made = sandbox.create_code_context(language="bash")
    equal(bare(f"/contexts/{made.id}", method="DELETE"), (200, "null"))
    raised(NotFoundException, lambda: sandbox.remove_code_context(made))
    raised(NotFoundException, lambda: run("1", context=made))


@row("E.3 languages: trimmed, in any case, by their aliases, each with one default context")
def _():
    for language in ("python", " Python ", "PYTHON3"):
        equal(sandbox.run_code("x", language=language).text, "42", language)
    for count, language in enumerate(("javascript", "js", " JS\n"), 1):
        equal(sandbox.run_code("globalThis.n = (globalThis.n ?? 0) + 1", language=language).text, str(count))
    assert printed("echo $BASH_VERSION", language=" BASH")[0].isdigit()
    languages = sorted(each.language for each in sandbox.list_code_contexts())
    equal(languages, ["bash", "javascript", "python", "python"])


@row("E.3 cwd: the user's home, or what was asked for")
def _():
    assert sandbox.run_code("import os; os.path.samefile('.', os.environ['HOME'])").text == "True"
    equal(value("import os; os.getcwd()[-4:]"), "/tmp")


@row("E.4 number_of_executions: the first line, with the count")
def _():
    equal(run("1").execution_count + 1, run("1").execution_count)


@row("E.4 stdout and stderr: text and timestamp")
def _():
    seen = []
    run(
        "import sys; print('é', flush=True); print('€', file=sys.stderr)",
        on_stdout=seen.append,
        on_stderr=seen.append,
    )
    equal([(each.line, each.error) for each in seen], [("é\n", False), ("€\n", True)])
    assert all("T" in str(each.timestamp) and str(each.timestamp).endswith("+00:00") for each in seen), seen


@row("E.4 result: a field for each MIME type, any other in extra, which is always there, and is_main_result")
def _():
    bundle = {
        "text/plain": "t",
        "text/html": "<i>",
        "text/markdown": "*m*",
        "image/svg+xml": "<svg/>",
        "image/png": "cG5n",
        "image/jpeg": "anBn",
        "application/pdf": "cGRm",
        "text/latex": "$x$",
        "application/json": {"a": [1.0]},
        "application/javascript": "f()",
        "e2b/data": {"c": [1]},
        "application/x-own": {"b": 2},
    }
    shown, main = run(f"display({bundle!r}, raw=True)\n'value'").results
    fields = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "data")
    equal([shown[field] for field in fields], list(bundle.values())[:-1])
    equal([shown.extra, shown.is_main_result], [{"application/x-own": {"b": 2}}, False])
    equal([main.text, main.extra, main.is_main_result], ["value", {}, True])


@row("E.4 result: numbers are as they were written")
def _():
    found = run("{'a': 1.0, 'b': 12345678901234567890, 'c': 10**40, 'd': float('nan')}").results[0].json
    equal(found, {"a": 1.0, "b": 12345678901234567890, "c": 10**40, "d": None})
    assert isinstance(found["a"], float)


@row("E.4 text: one pair of the same quotes around it goes")
def _():
    for code, text in (("'hello'", "hello"), ('"it\'s"', "it's"), ("''", ""), ("'\"q\"'", '"q"'), ("b'x'", "b'x'")):
        equal(value(code), text, code)


@row("E.4 error: name, value and traceback without separators and colours, one at most")
def _():
    errors = []
    error = run("try:\n    1/0\nfinally:\n    raise ValueError('v')", on_error=errors.append).error
    equal([error.name, error.value, len(errors)], ["ValueError", "v", 1])
    assert error.traceback.endswith("ValueError: v") and "ZeroDivisionError" in error.traceback, error.traceback
    assert "\x1b" not in error.traceback


@row("E.4 keepalive: after each silence, of five seconds if nothing else is configured")
def _():
    execution = run("import time; time.sleep(1.2); 'whole'")
    equal([execution.text, execution.logs.stdout], ["whole", []])


@row("E.4 end_of_execution: the last line, always, as it is written")
def _():
    for code in ("1", "1/0", "", "def f(:"):
        body = bare("/execute", {"code": code, "context_id": context.id, "language": None, "env_vars": None})[1]
        assert body.endswith('\n{"type": "end_of_execution"}\n'), body


@row("E.4 stdout is told in large pieces")
def _():
    stdout = run("for n in range(100_000): print(n)").logs.stdout
    assert len(stdout) < 100, len(stdout)
    equal("".join(stdout), "".join(f"{n}\n" for n in range(100_000)))


@row("E.4 a semicolon gives no result, an empty cell does not count, input() fails")
def _():
    equal(run("1;").results, [])
    before = run("1").execution_count
    equal(run("").results, [])
    equal(run("1").execution_count, before + 1)
    equal(run("input()").error.name, "StdinNotImplementedError")


@row("E.4 set-up: whole sequences, JSON of lists and dictionaries, data of DataFrames, saved images, no viewer")
def _():
    result = run("list(range(2000))").results[0]
    equal(result.json, list(range(2000)))
    assert result.text.endswith("1999]")
    frame = run("import pandas as pd; pd.DataFrame({'a': [1], 't': pd.to_datetime(['2024-01-02'])})").results[0]
    equal(frame.data, {"a": [1], "t": ["2024-01-02T00:00:00"]})
    images = run("from PIL import Image; i = Image.new('RGB', (2, 2)); i.save('/tmp/row-e4.png'); i.show()").results
    equal([base64.b64decode(image.png)[:8] for image in images], [PNG_MAGIC] * 2)
    sandbox.files.remove("/tmp/row-e4.png")


@row("E.4 charts: each type, with the fields that clients know")
def _():
    def chart(code):
        return run(f"import matplotlib.pyplot as plt\n{code}\nplt.title('T'); plt.show()").results[0].chart

    line = chart("plt.plot([1, 2], [3, 4], label='l'); plt.xlabel('x (s)')")
    assert isinstance(line, charts.LineChart)
    equal([line.title, line.x_label, line.x_unit, line.x_scale.value], ["T", "x (s)", "s", "linear"])
    equal([(each.label, each.points) for each in line.elements], [("l", [(1.0, 3.0), (2.0, 4.0)])])
    assert all(isinstance(number, float) for number in (*line.x_ticks, *line.elements[0].points[0]))
    scatter = chart("plt.scatter([1], [2])")
    assert isinstance(scatter, charts.ScatterChart)
    equal(scatter.elements[0].points, [(1.0, 2.0)])
    bar = chart("plt.bar(['a'], [7], label='g')")
    assert isinstance(bar, charts.BarChart)
    equal([(each.label, each.group, each.value) for each in bar.elements], [("a", "g", 7)])
    pie = chart("plt.pie([1, 3], labels=['a', 'b'])")
    assert isinstance(pie, charts.PieChart)
    equal([(each.label, each.angle, each.radius) for each in pie.elements], [("a", 90, 1), ("b", 270, 1)])
    box = chart("plt.boxplot([1, 2, 3, 4, 30])")
    assert isinstance(box, charts.BoxAndWhiskerChart)
    (only,) = box.elements
    equal([only.min, only.median, only.max, only.outliers], [1, 3, 4, [30]])
    both = chart("one, two = plt.subplots(1, 2)[1]; one.plot([1]); two.bar(['a'], [1])")
    assert isinstance(both, charts.SuperChart)
    equal([type(each) for each in both.elements], [charts.LineChart, charts.BarChart])
    equal(chart("plt.imshow([[1]])").type, charts.ChartType.UNKNOWN)


@row("E.5 execute_request: counted, in the history, not silent, and an error stops nothing that waits")
def _():
    run("'kept'")
    failing = threading.Thread(target=run, args=("import time; time.sleep(0.3); 1/0",))
    failing.start()
    equal(value("_"), "kept")
    failing.join()


@row("E.5 one execution at a time in a context, in their order, headers at once; several contexts at once")
def _():
    waiting = "import os, time\nwhile not os.path.exists('/tmp/row-e5'): time.sleep(0.01)\norder = ['first']"
    first = threading.Thread(target=sandbox.run_code, args=(waiting,))
    first.start()
    second = threading.Thread(target=sandbox.run_code, args=("order.append('second')",))
    time.sleep(0.2)
    second.start()
    equal(value("3"), "3")
    run("open('/tmp/row-e5', 'w').close()")
    first.join()
    second.join()
    equal(sandbox.run_code("order").results[0].json, ["first", "second"])
    run("import os; os.remove('/tmp/row-e5')")


@row("E.5 global variables are in every context, whatever language it has")
def _():
    equal(value("import os; os.environ['GLOBAL']"), "g")
    equal(printed("echo $GLOBAL", language="bash"), "g\n")


@row("E.5 env_vars are there for one execution, and the global ones come back")
def _():
    code = "import os; (os.environ['GLOBAL'], os.environ.get('OWN'))"
    equal(value(code, envs={"GLOBAL": "mine", "OWN": "o"}), "('mine', 'o')")
    equal(value(code), "('g', None)")


@row("E.5 a client that leaves: the code is interrupted, the next one runs with the same state")
def _():
    run("kept = 1")
    raised(TimeoutException, lambda: run("while True: pass", timeout=0.7))
    equal(value("kept"), "1")


@row("E.5 restart: what runs ends as UnexpectedEndOfExecution; id, directory and variables stay, the count begins anew")
def _():
    begun, errors = threading.Event(), []
    code = "import os, time; kept = 1; os.chdir('/'); os.environ.clear(); print(1, flush=True); time.sleep(100)"
    options = {"on_stdout": lambda _: begun.set(), "on_error": errors.append}
    running = threading.Thread(target=run, args=(code,), kwargs=options)
    running.start()
    assert begun.wait(SLOWEST)
    sandbox.restart_code_context(context)
    running.join()
    equal([each.name for each in errors], ["UnexpectedEndOfExecution"])
    after = run("import os; ('kept' in globals(), os.environ['GLOBAL'], os.getcwd()[-4:])")
    equal([after.text, after.execution_count], ["(False, 'g', '/tmp')", 1])


@row("E.5 the kernel's death: ContextRestarting, and the next code finds variables and directory as at the start")
def _():
    error = run("import os; os.chdir('/'); os.environ.clear(); os._exit(1)").error
    equal([error.name, error.value, error.traceback], ["ContextRestarting", "Context was restarted", ""])
    after = run("import os; (os.environ['GLOBAL'], os.getcwd()[-4:])")
    equal([after.text, after.execution_count], ["('g', '/tmp')", 1])


@row("E.5 exit() ends without an error, and the next code runs afresh")
def _():
    equal(run("kept = 1; exit()").error, None)
    after = run("'kept' in globals()")
    equal([after.text, after.execution_count], ["False", 1])


@row("E.5 a lost connection to the kernel: what runs ends with an error, the next code runs")
def _():
    destroy = "for each in gc.get_objects():\n    if isinstance(each, zmq.Context): each.destroy()"
    error = run(f"import gc, time, zmq\n{destroy}\ntime.sleep(100)").error
    assert error.name in ("UnexpectedEndOfExecution", "ContextRestarting")
    equal(value("1 + 1"), "2")


@row("E.6-1 an execution right after one that timed out answers, time after time")
def _():
    for turn in range(10):
        raised(TimeoutException, lambda: run("while True: pass", timeout=0.001 + 0.02 * turn))
        equal(value("'answered'"), "answered", str(turn))


@row("E.6-2 variables cost no second execution")
def _():
    run("runs = []\nget_ipython().events.register('pre_execute', lambda: runs.append(1))")
    count = run("runs.clear()", envs={"A": "b"}).execution_count
    after = run("len(runs)", envs={"A": "c"})
    equal([after.text, after.execution_count], ["1", count + 1])


@row("E.6-3 whatever is in the value of a variable is its value, and lines are the user's")
def _():
    envs = {"QUOTED": QUOTED}
    equal("".join(run("import os; print(os.environ['QUOTED'], end='')", envs=envs).logs.stdout), QUOTED)
    equal(printed('printf %s "$QUOTED"', language="bash", envs=envs), QUOTED)
    assert "----> 2 1/0" in run("pass\n1/0", envs=envs).error.traceback


@row("E.6-3 a context whose directory does not exist is refused")
def _():
    refused = raised(SandboxException, lambda: sandbox.create_code_context(cwd="/does/not/exist"))
    assert "cwd '/does/not/exist' does not exist" in refused, refused


def failure(meets):
    try:
        meets()
    except Exception:
        return traceback.format_exc()
    return None


try:
    json.dump({title: failure(meets) for title, meets in ROWS}, sys.stdout)
finally:
    sandbox.kill()
