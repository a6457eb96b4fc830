"""A process that has imported a kernel's modules, and forks a new kernel on request.

One zygote runs in a sandbox and serves that sandbox alone: its forks share a hash seed and a memory layout. It never
runs user code and has one thread; neither ZeroMQ nor an event loop exist before a fork. Its client is a small process
(`fork.py`), started like a kernel, which passes its environment, folder and output, and ends as the kernel ends.
Killing that process kills the kernel, and killing the zygote kills all its kernels.
"""

import atexit
import ctypes
import gc
import hmac
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time

# Modules that a kernel imports at its start, or with its first cell.
KERNEL = (
    "pdb",
    "faulthandler",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)
# Time for threads to end: the font cache is built by a timer's thread, for example.
THREADS_END = 10.0
# Time for a client to send its request; silent ones are dropped.
REQUEST_TIMEOUT = 5.0


def run(start):
    """Serves until it is killed. Returns in a forked process only, after its kernel has ended.

    `start["imports"]` are the modules to import, `start["name"]` is its address, `start["secret"]` the clients' secret.
    It reports the result of the imports on its stdout, as one line of JSON.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    # Otherwise figures made by pyplot before the first cell would not be shown.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    import coppice_launcher

    _import(KERNEL)  # Versions differ: a missing module is not needed.
    failures = _import(start["imports"])
    listener = _listen(start["name"])
    threads = _threads_that_stay()
    line = json.dumps({"failures": failures, "threads": threads}).encode() + b"\n"
    os.write(1, line)
    os.dup2(nothing, 1)
    os.close(nothing)
    if threads:
        return
    gc.collect()
    # Objects that exist now are never freed: garbage collection in a kernel must not write to shared pages.
    gc.freeze()
    request = _serve(listener, start["secret"])
    coppice_launcher.run(request)


def _import(names):
    failures = {}

    def attempt(name, run, *arguments):
        try:
            run(*arguments)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"

    for name in names:
        attempt(name, importlib.import_module, name)
    if "matplotlib" in sys.modules and "matplotlib" not in failures:
        attempt("matplotlib", _draw)
    return failures


def _draw():
    # Fonts are found and read once, not by every kernel. Not with pyplot: it would remember the figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().plot([0, 1])
    FigureCanvasAgg(figure).draw()


def _threads_that_stay():
    until = time.monotonic() + THREADS_END
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.05)
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def address_of(name):
    """Linux has names that vanish with their owner; elsewhere it is a file of the sandbox."""
    return "\0" + name if sys.platform == "linux" else "/tmp/" + name


def _listen(name):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    address = address_of(name)
    mask = os.umask(0o077)
    listener.bind(address)
    os.umask(mask)
    if not address.startswith("\0"):
        owner = os.getpid()
        atexit.register(lambda: os.getpid() == owner and os.unlink(address))
    listener.listen(64)
    return listener


def _serve(listener, secret):
    """Returns in each forked process, with the client's request."""
    listener.setblocking(False)
    wake, wakes = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(wake, select.POLLIN)
    clients = {}  # by the kernel's pid
    zygote = os.getpid()
    while True:
        ready = {fd for fd, _ in poll.poll()}
        for pid in [pid for pid, client in clients.items() if client.fileno() in ready]:
            _kill(pid)
            client = clients.pop(pid)
            poll.unregister(client)
            client.close()
        if wake in ready:
            os.read(wake, 4096)
            for pid, how in _ended():
                client = clients.pop(pid, None)
                if client is not None:
                    poll.unregister(client)
                    _tell(client, how)
        if listener.fileno() not in ready:
            continue
        client = _accept(listener)
        if client is None:
            continue
        try:
            pid = os.fork()
        except OSError:
            client.close()  # The sandbox's process limit is reached: the client gives up.
            continue
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (listener, *clients.values()):
                other.close()
            os.close(wake)
            os.close(wakes)
            return _become(client, zygote, secret)
        clients[pid] = client
        # Only its end is watched: its data are for the kernel.
        poll.register(client, 0)


def _kill(pid):
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass  # It has no group yet, or has ended.


def _accept(listener):
    try:
        client, _ = listener.accept()
        client.setblocking(True)
        return client
    except OSError:
        return None


def _ended():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _tell(client, how):
    try:
        client.sendall(str(how).encode())
    except OSError:
        pass
    client.close()


def _become(client, zygote, secret):
    """Turns the forked process into the requested kernel; exits on an invalid request."""
    try:
        os.setsid()
        _end_with_parent(zygote)
        client.settimeout(REQUEST_TIMEOUT)
        message, fds = _receive(client)
        request = json.loads(message)
        if not hmac.compare_digest(request.pop("secret").encode(), secret.encode()):
            os._exit(1)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        client.close()
        os.environ.clear()
        os.environ.update(request.pop("environment"))
        os.chdir(request.pop("folder"))
        _reseed()
        return request
    except BaseException as error:
        os.write(2, f"forking a kernel: {type(error).__name__}: {error}\n".encode())
        os._exit(1)


def _receive(client):
    """Reads a length, as many bytes, and three descriptors with the first of them."""
    data, fds, _, _ = socket.recv_fds(client, 65536, 3)
    length, _, rest = data.partition(b"\n")
    while len(rest) < int(length):
        more = client.recv(65536)
        if not more:
            raise EOFError("the request ended early")
        rest += more
    return rest, fds


def _reseed():
    # Python reseeds `random` itself.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _end_with_parent(parent):
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    elif sys.platform.startswith("freebsd"):
        P_PID, PROC_PDEATHSIG_CTL = 0, 11
        number = ctypes.c_int(signal.SIGKILL)
        libc.procctl(P_PID, ctypes.c_int64(0), PROC_PDEATHSIG_CTL, ctypes.byref(number))
    if os.getppid() != parent:
        os._exit(1)
