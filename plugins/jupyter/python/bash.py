"""A kernel for bash: one shell that keeps its variables, functions and directory from cell to cell.

The shell is an interactive one without a terminal, because only those survive an interrupt: it ends what
runs, wherever that is, and the shell reads its next command. It stays in the kernel's process group, so an
interrupt of the group reaches it and its programs. It writes to the kernel's own descriptors 1 and 2, which
the launcher turns into output.
"""

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time

from ipykernel.kernelbase import Kernel

from coppice_cancelling import Cancellable

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Time after an interrupt in which the shell has to report the cell's end before it is asked again, and in which it has
# to go on reading the cell's code, if it still does.
ASK_AGAIN = 0.3
# Time for the shell to notice the end of its input.
END_WAIT = 1.0


class Shell:
    """A bash process. Raises FileNotFoundError where there is none."""

    def __init__(self, environment):
        code, self._code = os.pipe()
        self._status, status = os.pipe()
        # Two ends for the shell alone; the reader also empties output that an interrupt left unread.
        self._unread, self._runs, self._buffer, self._interrupts = code, 0, b"", 0
        error = os.dup(2)
        # Terminal whose settings it keeps, and restores after each program that a signal ended. Without one it would
        # print an error each time.
        self._terminal, terminal = _terminal()
        # A kernel ignores SIGINT between cells, and programs would inherit that.
        ignored = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            self._process = subprocess.Popen(
                # Without +m the shell would look for a terminal to control.
                ["bash", "--norc", "--noprofile", "--noediting", "+m", "-i"],
                env=environment,
                stdin=subprocess.PIPE,
                # Receives its warning about missing job control.
                stderr=terminal,
                pass_fds=[code, status, error],
            )
        finally:
            signal.signal(signal.SIGINT, ignored)
            os.close(status)
            os.close(error)
            os.close(terminal)
        os.set_blocking(self._code, False)
        self._read_code = f"IFS= read -r -d '' -u {code} __coppice_code"
        # Programs inherit neither of these, and their stdin is empty instead of the next command.
        self._apart = f"</dev/null {code}<&- {status}>&-"
        self._status_to = status
        self._command(f"PS1= PS2=; set +H +o history; unset HISTFILE; exec 2>&{error} {error}>&-")
        # An interactive shell prints "exit" when it exits.
        self._command('exit() { builtin exit "$@" 2>/dev/null; }')

    def run(self, code, variables):
        """The exit status of code; None when the shell itself has ended."""
        # Interrupts are counted: an exception between two writes would leave the shell waiting for code that never
        # comes, and the next cell's would be taken for it.
        self._interrupts = 0
        raising = signal.signal(signal.SIGINT, self._count_interrupt)
        try:
            return self._run(code, variables)
        finally:
            signal.signal(signal.SIGINT, raising)

    def _count_interrupt(self, *_):
        self._interrupts += 1

    def _run(self, code, variables):
        self._discard_unread()
        self._runs += 1
        names = [name for name in variables if NAME.fullmatch(name)]
        if names:
            self._evaluate("".join(_entering(name, variables[name]) for name in names))
        self._report = (
            "__coppice_status=$?; unset __coppice_code; "
            + "".join(map(_leaving, names))
            + f"printf '%s %s\\0' {self._runs} \"$__coppice_status\" >&{self._status_to}"
        )
        self._evaluate(code)
        self._command(self._report)
        return self._await_status()

    def end(self):
        self._process.stdin.close()
        try:
            self._process.wait(END_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()

    @property
    def exit_code(self):
        return self._process.wait()

    def _command(self, text):
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended, which is noticed when its answer is awaited.

    def _evaluate(self, code):
        self._command(f'{self._read_code}; eval "$__coppice_code" {self._apart}')
        rest = memoryview(code.encode("utf-8", "replace").replace(b"\0", b"") + b"\0")
        read_at = time.monotonic()
        while rest:
            try:
                rest = rest[os.write(self._code, rest) :]
                read_at = time.monotonic()
            except BlockingIOError:
                select.select([], [self._code], [], 0.05)
                if self._process.poll() is not None:
                    return
                if self._interrupts > 0 and time.monotonic() > read_at + ASK_AGAIN:
                    # The interrupted shell has stopped reading: the next cell must not get the rest.
                    self._discard_unread()
                    return

    def _discard_unread(self):
        # The descriptor blocks, because the shell shares it, so it is polled before each read.
        while select.select([self._unread], [], [], 0)[0]:
            os.read(self._unread, 65536)

    def _await_status(self):
        """The exit status; None for a shell that has ended."""
        known, ask_at = 0, None
        while True:
            if known != self._interrupts:
                # The shell got it too, perhaps just before reporting the cell's end.
                known, ask_at = self._interrupts, time.monotonic() + ASK_AGAIN
            while b"\0" in self._buffer:
                answer, self._buffer = self._buffer.split(b"\0", 1)
                run, status = answer.split()
                if int(run) == self._runs:
                    return int(status)
            if select.select([self._status], [], [], 0.05)[0]:
                data = os.read(self._status, 4096)
                if data:
                    self._buffer += data
                    continue
            # A background process may keep the pipe open, so its end means nothing.
            if self._process.poll() is not None:
                return None
            if ask_at is not None and time.monotonic() > ask_at:
                self._command(self._report)
                ask_at = time.monotonic() + ASK_AGAIN


def _terminal():
    """Both ends of an unread terminal; the null device for both where there are no terminals."""
    try:
        return os.openpty()
    except OSError:
        nothing = os.open(os.devnull, os.O_RDWR)
        return nothing, os.dup(nothing)


def _entering(name, value):
    return (
        f'[[ -v {name} ]] && __coppice_had_{name}=1 __coppice_was_{name}="${name}"\n'
        f"export {name}={shlex.quote(value)}\n"
    )


def _leaving(name):
    return (
        f'if [[ -v __coppice_had_{name} ]]; then {name}="$__coppice_was_{name}"; else unset {name}; fi; '
        f"unset __coppice_had_{name} __coppice_was_{name}; "
    )


class BashKernel(Cancellable, Kernel):
    implementation = "coppice-bash"
    implementation_version = "1.0"
    language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh", "codemirror_mode": "shell"}
    banner = "bash"
    # Environment of the shell; the launcher adds to its own.
    environment = dict(os.environ)

    def __init__(self, **settings):
        super().__init__(**settings)
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        self._shell = Shell(self.environment)

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **_):
        parent = self.get_parent("shell")
        for stream in (sys.stdout, sys.stderr):
            stream.set_parent(parent)
        status = self._shell.run(code, (parent.get("metadata") or {}).get("env_vars") or {})
        payload = []
        if status is None:
            # As after exit() in Python: the context gets a fresh kernel.
            status = self._shell.exit_code
            payload = [{"source": "ask_exit", "keepkernel": False}]
        sys.stdout.settle()
        sys.stderr.settle()
        reply = {"execution_count": self.execution_count, "payload": payload, "user_expressions": {}}
        if status == 0:
            return {"status": "ok", **reply}
        error = {"ename": "ExitCode", "evalue": str(status), "traceback": [f"exit code {status}"]}
        if not silent:
            self.send_response(self.iopub_socket, "error", error)
        return {"status": "error", **error, **reply}

    def do_shutdown(self, restart):
        self._shell.end()
        return {"status": "ok", "restart": restart}
