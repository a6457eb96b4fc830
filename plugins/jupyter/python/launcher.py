"""Runs one kernel inside a sandbox: IPython, or another that is written in Python.

The server sends this file and its neighbours over stdin (nothing of them is stored in the sandbox),
where they are modules named `coppice_<file>`, and calls `run`. It works on ipykernel 6.17 and 7 and
differs from `python -m ipykernel_launcher` in what the classes below mend. Beside that, ports are chosen by the
kernel and reported as one line of JSON on the original stdout, so there is no connection file, no race for a port, and
no key on disk; and nothing is written to the user's home.
"""

import builtins
import codecs
import contextlib
import json
import math
import os
import select
import site
import sys
import threading
import time
import traceback
from importlib import machinery
from json.encoder import encode_basestring

# The debugger is a third of the import time: see coppice_debugging.
sys.modules.setdefault("debugpy", None)

import ipykernel.debugger  # noqa: E402, F401  (version 7 would import it when the kernel is made)
from ipykernel.control import ControlThread  # noqa: E402
from ipykernel.iostream import OutStream  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from ipykernel.zmqshell import ZMQInteractiveShell  # noqa: E402
from IPython import version_info as ipython_version  # noqa: E402
from IPython.core.profiledir import ProfileDir  # noqa: E402
from traitlets import Integer, default, observe  # noqa: E402

from coppice_cancelling import Cancellable  # noqa: E402
from coppice_debugging import Debuggable  # noqa: E402
from coppice_fitting import error_to_fit, packed_to_fit  # noqa: E402
from coppice_results import add_formatters  # noqa: E402

if sys.modules.get("debugpy", 0) is None:
    del sys.modules["debugpy"]

import zmq  # noqa: E402
from jupyter_client.jsonutil import json_default  # noqa: E402
from jupyter_client.session import Session, json_packer  # noqa: E402

# Characters of output per message.
PIECE = 512 * 1024
# Characters of output after which a cell waits until they are sent. Each wait costs two thread switches.
BURST = 4 * PIECE
# Characters of one long write that are sent at once, without a copy.
STRETCH = 16 * PIECE
# Messages queued for a slow reader before user code has to wait.
WAITING_MESSAGES = 32
# How long the end of a cell waits for its child processes' output in the pipe.
CAPTURE_WAIT = 1.0
# Length from which text is packed here.
LONG_TEXT = 4096
ESCAPES = [(b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"), (b"\x1b", b"\\u001b")]
# A search for each is faster than one look at every byte.
OTHER_CONTROLS = [bytes([byte]) for byte in range(32) if byte not in b"\n\r\t\x1b"]


def pack(value):
    """JSON as Session packs it. Its encoder looks at each character, which is most of the work for a cell that prints a
    lot; searches for the few bytes that need escaping are faster.
    """
    if not isinstance(value, dict) or value.keys() != {"name", "text"}:
        return _pack_value(value)
    name, text = value["name"], value["text"]
    if name not in ("stdout", "stderr") or not isinstance(text, str) or len(text) < LONG_TEXT:
        return _pack_value(value)
    return _pack_text(text, b'{"name": "%s", "text": ' % name.encode(), b"}")


def _pack_value(value):
    # Session's own packer refuses some values of user code, and prints warnings about more.
    try:
        return _json(value).encode()
    except UnicodeEncodeError:
        return without_surrogates(_json(value)).encode()
    except ValueError:
        return without_surrogates(_json(_finite(value))).encode()
    except TypeError:
        return json_packer(value)


_json = json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False).encode


def _finite(value):
    """The value with None for each NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def without_surrogates(text):
    """The text with U+FFFD for each surrogate that has no partner."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _pack_text(text, before, after):
    if text.isascii():
        data = text.encode()
        for byte, escape in ESCAPES:
            data = data.replace(byte, escape)
        if not any(control in data for control in OTHER_CONTROLS):
            return b"".join((before, b'"', data, b'"', after))
    return before + encode_basestring(text).encode() + after


# Messages that show a value.
SHOWING = ("display_data", "execute_result", "update_display_data")


class PiecewiseSession(Session):
    """Splits output into messages of a bounded size, and cuts others to the size that the server accepts."""

    most_bytes = Integer().tag(config=True)

    def send(self, stream, msg_or_type, content=None, parent=None, *places, **options):
        message = msg_or_type if isinstance(msg_or_type, dict) else None
        whole = message["content"] if message else content
        kind = message["header"]["msg_type"] if message else msg_or_type
        text = whole.get("text") if kind == "stream" and isinstance(whole, dict) else None
        if isinstance(text, str) and len(text) > PIECE:
            header = message["parent_header"] if message else parent
            for start in range(0, len(text), PIECE):
                piece = {"name": whole["name"], "text": text[start : start + PIECE]}
                sent = super().send(stream, "stream", piece, header, *places, **options)
            return sent
        fitting = self._fitting(kind, whole)
        what = {**message, "content": fitting} if message and fitting is not whole else msg_or_type
        return super().send(stream, what, fitting, parent, *places, **options)

    def _fitting(self, kind, content):
        if kind in SHOWING:
            return packed_to_fit(content, self.most_bytes, self.pack)
        if isinstance(content, dict) and "ename" in content:
            return error_to_fit(content, self.most_bytes)
        return content


class OutputStream(OutStream):
    """sys.stdout or sys.stderr of the kernel, file descriptors 1 and 2 included."""

    def __init__(self, *args, watchfd=True, **kwargs):
        self._unflushed = 0
        self._copying = False
        self._should_watch = False
        self._captured = None
        # ipykernel captures descriptors on Linux and macOS only; the pipes work on every Unix.
        super().__init__(*args, watchfd=watchfd, **kwargs)
        if watchfd and not self._should_watch:
            self._should_watch = True
            self._setup_stream_redirects(self.name)

    def _setup_stream_redirects(self, name):
        self._captured = getattr(sys, name).fileno()
        super()._setup_stream_redirects(name)

    def fileno(self):
        # Programs that get this descriptor write output, too; ipykernel's own descriptor is not shown.
        return super().fileno() if self._captured is None else self._captured

    def close(self):
        """Ignored: later cells need it."""
        self.flush()

    def flush(self):
        # ipykernel flushes after each control request, in the middle of a line that a cell prints.
        if not isinstance(threading.current_thread(), ControlThread):
            super().flush()

    def write(self, string):
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        if not string.isascii():
            try:
                string.encode()
            except UnicodeEncodeError:
                string = without_surrogates(string)
        if len(string) >= PIECE and self._is_sent_elsewhere():
            self._publish(string)
            return len(string)
        # A cheap path: most writes are short and frequent.
        unflushed = self._unflushed + len(string)
        if unflushed < BURST:
            self._unflushed = unflushed
            return super().write(string)
        for start in range(0, len(string), BURST):
            super().write(string[start : start + BURST])
            # Waits until iopub has it, which slows a cell down to the speed of its reader.
            self._unflushed = 0
            self.flush()
        return len(string)

    def _is_sent_elsewhere(self):
        """True when another thread sends this one's output, which no thread of a forked process does."""
        sender = self.pub_thread and self.pub_thread.thread
        return sender is not None and sender.is_alive() and sender is not threading.current_thread()

    def _publish(self, text):
        """Sends long text without the buffer, which would copy it. Waiting for each stretch slows a cell down to the
        speed of its reader, and lets an interrupt end it.
        """
        if self._unflushed:
            self._unflushed = 0
            self.flush()
        parent = self.parent_header
        for start in range(0, len(text), STRETCH):
            sent = threading.Event()

            def send(start=start, sent=sent):
                try:
                    self._send_stretch(text, start, parent)
                finally:
                    sent.set()

            self.pub_thread.schedule(send)
            while not sent.wait(self.flush_timeout) and self._is_sent_elsewhere():
                pass

    def _send_stretch(self, text, start, parent):
        """Runs in the sending thread, so that no message waits for a thread switch."""
        for at in range(start, min(start + STRETCH, len(text)), PIECE):
            content = {"name": self.name, "text": text[at : at + PIECE]}
            if not self.pub_thread.closed:
                self.session.send(self.pub_thread.socket, "stream", content, parent, ident=self.topic)

    def _watch_pipe_fd(self):
        """Decodes piecewise, because a character may be on the edge of a read."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while self._should_watch:
                self._copying = False
                # A read that empties the pipe waits for the interpreter's lock before it returns: `settle` would see an
                # empty pipe and no copy.
                select.select([self._fid], [], [])
                self._copying = True
                data = os.read(self._fid, 65536)
                text = decoder.decode(data, final=not data)
                if text:
                    self.write(text)
                if not data:
                    break
        except Exception:
            self._exc = sys.exc_info()
        finally:
            self._copying = False

    def settle(self, deadline=None):
        """Waits until the pipe's contents have been written to this stream, for CAPTURE_WAIT at most."""
        deadline = deadline or time.monotonic() + CAPTURE_WAIT
        while self._should_watch and self.watch_fd_thread.is_alive() and time.monotonic() < deadline:
            # In this order: a copy is announced before the pipe is read.
            if not select.select([self._fid], [], [], 0)[0] and not self._copying:
                return
            time.sleep(0.0005)


def _ipython_dir():
    return os.environ.get("IPYTHONDIR") or os.path.expanduser("~/.ipython")


def _mend_streams():
    """Restores a stdout or stderr that cannot be flushed: otherwise each cell fails at its end, or hangs."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if isinstance(stream, OutputStream):
            continue
        try:
            stream.flush()
        except Exception:
            setattr(sys, name, getattr(sys, f"__{name}__"))


class _Forgetful(dict):
    """A dictionary of lists that keeps none of them."""

    def __missing__(self, key):
        return []


class Shell(ZMQInteractiveShell):
    def init_history(self):
        super().init_history()
        # IPython 9 keeps what cells print and show, for %notebook, as long as the kernel lives.
        self.history_manager.outputs = _Forgetful()

    @contextlib.contextmanager
    def _tee(self, channel):
        """IPython 9 would look at each write, to keep it."""
        yield

    def set_parent(self, parent):
        super().set_parent(parent)
        # The original streams, even if user code has replaced them: child processes still write to these.
        for stream in (sys.__stdout__, sys.__stderr__):
            if isinstance(stream, OutputStream):
                stream.set_parent(parent)

    def showtraceback(self, exc_tuple=None, *places, **options):
        """IPython prints the traceback of an exception group, and leaves it out of the error."""
        if not _has_group(exc_tuple[1] if exc_tuple else sys.exc_info()[1]):
            return super().showtraceback(exc_tuple, *places, **options)
        kind, error, frames = self._get_exc_info(exc_tuple)
        # The first frame is IPython's own.
        lines = traceback.format_exception(kind, error, frames and frames.tb_next)
        return self._showtraceback(kind, error, ["".join(lines)])

    def _showtraceback(self, *error):
        _mend_streams()
        super()._showtraceback(*error)

    def init_ipython_dir(self, ipython_dir):
        self.ipython_dir = ipython_dir or _ipython_dir()

    @observe("ipython_dir")
    def _ipython_dir_changed(self, change):
        pass  # IPython would create the directory.


def _has_group(error):
    """True when the error, or one that was handled when it was raised, is an exception group."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, getattr(builtins, "BaseExceptionGroup", ())):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


class Profile(ProfileDir):
    """A profile that is read where it exists and never created."""

    @observe("location")
    def _location_changed(self, change):
        for name in ("security", "log", "startup", "pid", "static"):
            setattr(self, name + "_dir", os.path.join(change["new"], name))

    @observe("startup_dir")
    def check_startup_dir(self, change=None):
        pass

    def _mkdir(self, path, mode=None):
        return False

    def check_dirs(self):
        pass


class Kernel(Debuggable, Cancellable, IPythonKernel):
    shell_class = Shell
    control_msg_types = [*IPythonKernel.control_msg_types, "coppice_environment_request"]

    async def coppice_environment_request(self, stream, ident, parent):
        """Changes the environment permanently: a warm kernel is older than its sandbox's creator's options."""
        content = parent["content"]
        for name in content["unset"]:
            os.environ.pop(name, None)
        os.environ.update(content["set"])
        self.session.send(stream, "coppice_environment_reply", {"status": "ok"}, parent, ident=ident)

    async def do_execute(self, *args, **kwargs):
        variables = (self.get_parent("shell").get("metadata") or {}).get("env_vars") or {}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        kernel = os.getpid()
        try:
            return await super().do_execute(*args, **kwargs)
        except Exception as error:
            # IPython refuses some code before it runs (a NUL byte in old versions), and then there would be no reply at
            # all.
            return {
                "status": "error",
                "execution_count": self.execution_count,
                "ename": type(error).__name__,
                "evalue": str(error),
                "traceback": [f"{type(error).__name__}: {error}"],
                "payload": [],
                "user_expressions": {},
            }
        finally:
            if os.getpid() != kernel:
                _end_copy()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            _mend_streams()
            deadline = time.monotonic() + CAPTURE_WAIT
            for stream, current in ((sys.__stdout__, sys.stdout), (sys.__stderr__, sys.stderr)):
                if isinstance(stream, OutputStream):
                    stream.settle(deadline)
                    if stream is not current:
                        stream.flush()


def _end_copy():
    """Ends a process that a cell forked with the cell: two kernels on one set of sockets would answer twice."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


class KernelApp(IPKernelApp):
    kernel_class = Kernel
    outstream_class = "coppice_launcher.OutputStream"
    report = None

    def init_profile_dir(self):
        self.profile_dir = Profile(parent=self, location=os.path.join(self.ipython_dir, "profile_default"))
        self.config_file_paths.append(self.profile_dir.location)

    def _nothing(self, *args, **kwargs):
        pass

    # Building a parser for the command line takes as long as the shell.
    parse_command_line = init_config_files = _nothing
    init_connection_file = cleanup_connection_file = log_connection_info = _nothing

    def init_io(self):
        super().init_io()
        self._real_streams = sys.__stdout__, sys.__stderr__
        # A cell that restores stdout after a redirection means these.
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr

    def reset_io(self):
        sys.__stdout__, sys.__stderr__ = self._real_streams
        super().reset_io()

    @default("session")
    def _session_default(self):
        return PiecewiseSession(parent=self)

    @default("ipython_dir")
    def _ipython_dir_default(self):
        return _ipython_dir()

    @observe("ipython_dir")
    def _ipython_dir_changed(self, change):
        pass  # IPython would create the directory.

    def write_connection_file(self, **kwargs):
        names = ("shell", "iopub", "stdin", "control", "hb")
        self._ports = {name: getattr(self, f"{name}_port") for name in names}
        self.report(self._ports)

    def _bind_socket(self, socket, port):
        if socket is self.iopub_socket:
            # Connections have the limits that the socket had when it was bound.
            socket.setsockopt(zmq.XPUB_NODROP, 1)
            socket.setsockopt(zmq.SNDHWM, WAITING_MESSAGES)
        return super()._bind_socket(socket, port)


def _search_user_packages():
    """Where pip cannot write to the environment, it installs for the user. Python searches that directory only if it
    existed at the start, and caches its absence.
    """
    directory = site.getusersitepackages()
    if not site.ENABLE_USER_SITE or directory in sys.path:
        return
    packages = (at for at, place in enumerate(sys.path) if place.endswith(("site-packages", "dist-packages")))
    sys.path.insert(next(packages, len(sys.path)), directory)
    sys.path_importer_cache[directory] = machinery.FileFinder(
        directory,
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    )


def run(start):
    """Runs the kernel until it is shut down.

    `start["language"]` is what it runs, `start["key"]` signs its messages, `start["mostCells"]` bounds the
    data of a result, `start["mostBytes"]` the content of one message. Its ports are the one line that it writes to the stdout it was started with.
    """
    # User code must not read the stdin that carried `start`.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    original_stdout = os.dup(1)

    def report(ports):
        line = json.dumps(ports).encode() + b"\n"
        while line:
            line = line[os.write(original_stdout, line) :]
        os.close(original_stdout)

    sys.argv = [""]
    if start["language"] == "bash":
        from coppice_bash import BashKernel

        KernelApp.kernel_class = BashKernel
    app = KernelApp.instance()
    app.report = report
    # A shell's folder has no modules for this process.
    app.ignore_cwd = start["language"] != "python"
    app.ip = "127.0.0.1"
    app.transport = "tcp"
    app.log_level = "ERROR"
    app.config.InteractiveShell.colors = "nocolor" if ipython_version[0] >= 9 else "NoColor"
    app.config.PlainTextFormatter.max_seq_length = 0
    app.config.HistoryManager.enabled = False
    app.config.Session.packer = "coppice_launcher.pack"
    app.config.PiecewiseSession.most_bytes = start["mostBytes"]
    app.config.Session.key = start["key"].encode()
    app.initialize([])
    if start["language"] == "python":
        _search_user_packages()
        add_formatters(app.kernel.shell, start["mostCells"])
    app.start()
