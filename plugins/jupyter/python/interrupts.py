"""Interrupts that are meant for the code of one client."""


class SessionInterrupts:
    """For a kernel's class. An interrupt that names a session leaves alone what runs for another one, and says so."""

    _running_for = None

    async def execute_request(self, stream, ident, parent):
        self._running_for = parent["header"]["session"]
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            self._running_for = None

    async def interrupt_request(self, stream, ident, parent):
        session = parent["content"].get("session")
        if session is None or session == self._running_for:
            await super().interrupt_request(stream, ident, parent)
        else:
            content = {"status": "ok", "interrupted": False}
            self.session.send(stream, "interrupt_reply", content, parent, ident=ident)
