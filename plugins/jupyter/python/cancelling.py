"""Lets the server take back one request, or those of one session, without touching any other.

`interrupt_request` ends whatever runs, which may be another client's cell while the one that was meant still
waits. `cancel_request` names a `msg_id` or a `session`: what it names is interrupted when it runs, and never
run when it does not.
"""

import collections
import os
import signal
import threading

# Number of cancelled requests to remember that have not arrived yet.
REMEMBERED = 1000


class Cancellable:
    """Mixed into a kernel, before ipykernel's Kernel in the list of its bases."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.control_handlers["cancel_request"] = self._cancel_request
        # Held while a cell begins or ends, so that a signal never hits the next one.
        self._changing = threading.Lock()
        # Sessions by the ids of their requests.
        self._running = {}
        self._cancelled = collections.deque(maxlen=REMEMBERED)

    async def execute_request(self, stream, ident, parent):
        header = parent["header"]
        request, session = header["msg_id"], header.get("session")
        with self._changing:
            is_cancelled = request in self._cancelled or session in self._cancelled
            if not is_cancelled:
                self._running[request] = session
        if is_cancelled:
            self._send_abort_reply(stream, parent, ident)
            return
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            with self._changing:
                self._running.pop(request, None)

    async def _cancel_request(self, stream, ident, parent):
        content = parent["content"]
        meant = content["msg_id"] if "msg_id" in content else content["session"]
        with self._changing:
            is_running = meant in self._running or meant in self._running.values()
            if is_running:
                _interrupt()
            # More requests of a session may wait.
            if not is_running or "session" in content:
                self._cancelled.append(meant)
        self.session.send(stream, "cancel_reply", {"status": "ok", "is_running": is_running}, parent, ident=ident)


def _interrupt():
    """Signals the kernel, and the programs of its group that it waits for."""
    kernel = os.getpid()
    if os.getpgid(kernel) == kernel:
        os.killpg(kernel, signal.SIGINT)
    else:
        os.kill(kernel, signal.SIGINT)
