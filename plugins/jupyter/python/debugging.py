"""The debugger of a Python kernel, loaded by the first request for it: its import is a third of a kernel's start."""

import asyncio
import importlib
import importlib.util
import inspect


class Debuggable:
    """Mixed into an IPythonKernel that was created while debugpy could not be imported."""

    debugger = None

    def __init__(self, **settings):
        super().__init__(**settings)
        # Before the user's folder is searched.
        try:
            self._can_debug = importlib.util.find_spec("debugpy") is not None
        except Exception:  # Errors of other finders are ignored.
            self._can_debug = False

    @property
    def kernel_info(self):
        info = {**super().kernel_info, "debugger": self._can_debug}
        features = info.get("supported_features")
        if self._can_debug and features is not None and "debugger" not in features:
            info["supported_features"] = [*features, "debugger"]
        return info

    async def poll_stopped_queue(self):
        # ipykernel calls this when the kernel starts, too.
        if self.debugger is not None:
            await super().poll_stopped_queue()

    async def do_debug_request(self, msg):
        if self.debugger is None and self._can_debug:
            self._load_debugger()
        if self.debugger is None:
            answer = {"type": "response", "request_seq": msg.get("seq"), "command": msg.get("command")}
            return {**answer, "success": False, "message": "debugpy cannot be imported"}
        return await super().do_debug_request(msg)

    def _load_debugger(self):
        from ipykernel import debugger, ipkernel

        # It was imported without debugpy.
        importlib.reload(debugger)
        if not debugger._is_debugpy_available:
            self._can_debug = False
            return
        # Before ipykernel 6.30 this module has copies of these names.
        for name in ("_is_debugpy_available", "Debugger"):
            if hasattr(ipkernel, name):
                setattr(ipkernel, name, getattr(debugger, name))
        values = {
            "log": self.log,
            "debugpy_stream": self.debugpy_stream,
            "event_callback": self._publish_debug_event,
            "shell_socket": self.debug_shell_socket,
            "session": self.session,
            "kernel_modules": getattr(self, "_kernel_modules", []),
            "just_my_code": getattr(self, "debug_just_my_code", True),
            "filter_internal_frames": getattr(self, "filter_internal_frames", True),
        }
        taken = inspect.signature(debugger.Debugger).parameters
        self.debugger = debugger.Debugger(**{name: values[name] for name in taken if name in values})
        self._polling = asyncio.get_running_loop().create_task(self.poll_stopped_queue())
