"""A user of the Python SDK of any version: is told E2B_DOMAIN and E2B_API_KEY, prints what it found as JSON."""

import base64
import inspect
import json
import socket
import sys
import urllib.request

from e2b import (
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    PtySize,
    SandboxException,
    TimeoutException,
)
from e2b_code_interpreter import Sandbox

resolve = socket.getaddrinfo


def resolve_localhost(host, *rest, **options):
    """Every name below `localhost` is this machine: glibc does not know, and /etc/hosts is not ours to edit."""
    name = host.decode() if isinstance(host, bytes) else host
    local = isinstance(name, str) and name.endswith(".localhost")
    return resolve("127.0.0.1" if local else host, *rest, **options)


socket.getaddrinfo = resolve_localhost


def create(**options):
    # Before version 2 the constructor made the sandbox.
    return Sandbox.create(**options) if hasattr(Sandbox, "create") else Sandbox(**options)


def error_of(call, expected):
    """The class that was raised, by the name that all versions know it by: newer ones raise subclasses."""
    try:
        call()
    except expected:
        return expected.__name__
    return None


def exit_of(call):
    try:
        call()
    except CommandExitException as error:
        return {"exit_code": error.exit_code, "stdout": error.stdout, "stderr": error.stderr, "error": error.error}
    return None


def commands(sandbox):
    run = sandbox.commands.run
    with_stdin = {"stdin": True} if "stdin" in inspect.signature(run).parameters else {}
    streamed = []
    result = run("echo out; echo $GREETING >&2; pwd", envs={"GREETING": "größer"}, cwd="/tmp", on_stdout=streamed.append)
    handle = run("read line; echo got $line; exit 3", background=True, **with_stdin)
    sandbox.commands.send_stdin(handle.pid, "a line\n")
    background = exit_of(handle.wait)
    sleeper = run("sleep 100", background=True)
    is_listed = sleeper.pid in [process.pid for process in sandbox.commands.list()]
    return {
        "stdout": result.stdout.split("\n")[0],
        "stderr": result.stderr,
        "error": result.error,
        "in_tmp": result.stdout.rstrip().endswith("/tmp"),
        "streamed": "".join(streamed) == result.stdout,
        "failed": exit_of(lambda: run("echo before; exit 43")),
        "background": background,
        "listed": is_listed,
        "killed": [sleeper.kill(), exit_of(sleeper.wait)["exit_code"], sleeper.kill()],
        "timeout": error_of(lambda: run("sleep 100", timeout=1), TimeoutException),
    }


def files(sandbox):
    content = bytes(range(256)) * 4096
    sandbox.files.write("dir/text.txt", "größer")
    sandbox.files.write("dir/binary", content)
    info = sandbox.files.rename("dir/text.txt", "dir/renamed.txt")
    found = {
        "text": sandbox.files.read("dir/renamed.txt"),
        "binary": bytes(sandbox.files.read("dir/binary", format="bytes")) == content,
        "renamed": info.path.rsplit("/", 1)[-1],
        "names": sorted(entry.name for entry in sandbox.files.list("dir")),
        "made": [sandbox.files.make_dir("dir/sub"), sandbox.files.make_dir("dir/sub")],
        "missing": error_of(lambda: sandbox.files.read("no-such-file"), NotFoundException),
    }
    sandbox.files.remove("dir")
    return {**found, "gone": not sandbox.files.exists("dir")}


def terminal(sandbox):
    shown = bytearray()
    handle = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"PS1": ""})
    sandbox.pty.resize(handle.pid, PtySize(rows=11, cols=33))
    sandbox.pty.send_stdin(handle.pid, b"stty -echo; stty size; tty >/dev/null && exit 4\n")
    ended = exit_of(lambda: handle.wait(on_pty=shown.extend))
    other = sandbox.pty.create(PtySize(rows=24, cols=80))
    return {
        "resized": b"11 33\r\n" in bytes(shown),
        "exit_code": ended["exit_code"],
        "killed": [sandbox.pty.kill(other.pid), sandbox.pty.kill(other.pid)],
    }


def input_stream(sandbox):
    """Input as one stream, which SDKs of 2024 do not have."""
    if not hasattr(sandbox.commands, "stream_input"):
        return None
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, ["a", b"b", "ü"] + ["x" * 100_000] * 10)
    sandbox.commands.close_stdin(handle.pid)
    typed = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.stream_input(typed.pid, ["exit ", b"6\n"])
    return {
        "stdout": handle.wait().stdout == "abü" + "x" * 1_000_000,
        "pty": exit_of(typed.wait)["exit_code"],
        "missing": error_of(lambda: sandbox.commands.stream_input(4_000_000, ["x"]), NotFoundException),
    }


def watch(sandbox):
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched")
    sandbox.files.write("watched/new.txt", "new")
    made = [[event.name, event.type.value] for event in handle.get_new_events()]
    sandbox.files.remove("watched/new.txt")
    gone = [event.type.value for event in handle.get_new_events()]
    handle.stop()
    return {"made": made, "gone": gone}


def urls(sandbox):
    """By anybody who was given the URL: newer SDKs sign it."""
    body = b'--X\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nby url\r\n--X--\r\n'
    form = {"content-type": "multipart/form-data; boundary=X"}
    urllib.request.urlopen(urllib.request.Request(sandbox.upload_url("url.txt"), body, form)).read()
    return urllib.request.urlopen(sandbox.download_url("url.txt")).read().decode()


def rig(sandbox):
    """The seven checks of the original's rig, in its order."""
    run = sandbox.run_code
    stored = run("x = 42")
    array = run("import numpy as np; np.array([1,2,3])")
    frame = run(
        "import pandas as pd; from IPython.display import display; display(pd.DataFrame({'a':[1,2], 'b':[3,4]}))"
    )
    plot = run(
        "import io, matplotlib.pyplot as plt\nfrom IPython.display import display, Image\nplt.plot([1, 4, 9])\n"
        "buffer = io.BytesIO(); plt.savefig(buffer, format='png'); plt.close()\ndisplay(Image(buffer.getvalue()))"
    )
    error = run("undefined_variable").error
    return {
        "hello": run("print('hello')").logs.stdout,
        "set": [stored.logs.stdout, len(stored.results)],
        "read": run("print(x)").logs.stdout,
        "array": [[result.text, result.is_main_result] for result in array.results],
        "frame": "<table" in frame.results[0].html,
        "png": base64.b64decode(plot.results[0].png)[:8].hex(),
        "error": [error.name, error.value, "NameError" in str(error.traceback)],
    }


def contexts(sandbox):
    """Contexts by what this SDK knows of them: the older one creates them only."""
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("y = 1", context=context)
    found = {
        "cwd": sandbox.run_code("import os; os.getcwd()[-4:]", context=context).text,
        "apart": sandbox.run_code("'y' in globals()").text,
        "crash": sandbox.run_code("os._exit(1)", context=context).error.name,
        "after": sandbox.run_code("'y' in globals()", context=context).text,
    }
    if hasattr(sandbox, "restart_code_context"):
        sandbox.restart_code_context(context)
        listed = [known.language for known in sandbox.list_code_contexts()]
        sandbox.remove_code_context(context)
        ids = [known.id for known in sandbox.list_code_contexts()]
        if listed != ["python", "javascript", "bash", "python"] or context.id in ids:
            found["listed"] = listed
    return found


def code(sandbox):
    printed = []
    sandbox.run_code("value = 6")
    execution = sandbox.run_code("print('hi'); value * 7", on_stdout=lambda message: printed.append(message.line))
    broken = sandbox.run_code("1 / 0")
    return {
        "text": execution.text,
        "stdout": execution.logs.stdout,
        "printed": printed,
        "error": [broken.error.name, broken.error.value],
        "traceback": "ZeroDivisionError" in str(broken.error.traceback),
        "envs": sandbox.run_code("import os; os.environ['A']", envs={"A": "it's \"so\""}).text,
        "bash": sandbox.run_code("echo $((6 * 7))", language="bash").logs.stdout,
        "timeout": error_of(lambda: sandbox.run_code("while True: pass", timeout=1), TimeoutException),
        "next": sandbox.run_code("value").text,
        "rig": rig(sandbox),
        "contexts": contexts(sandbox),
    }


def main():
    sandbox = create(timeout=120, metadata={"from": "python"})
    try:
        found = {
            "commands": commands(sandbox),
            "terminal": terminal(sandbox),
            "input": input_stream(sandbox),
            "files": files(sandbox),
            "watch": watch(sandbox),
            "urls": urls(sandbox),
            "code": code(sandbox),
            "running": sandbox.is_running(),
        }
        again = Sandbox.connect(sandbox.sandbox_id)
        found["connected"] = again.commands.run("echo again").stdout
    finally:
        killed = sandbox.kill()
    found["killed"] = [killed, Sandbox.kill(sandbox.sandbox_id)]
    found["running_after"] = sandbox.is_running()
    try:
        # The form of a key, and none that the server has.
        create(api_key="e2b_" + "0" * 40)
    except (AuthenticationException, SandboxException) as error:
        found["stranger"] = str(error).removeprefix("401: ").split(" - ")[-1]
    json.dump(found, sys.stdout)


main()
