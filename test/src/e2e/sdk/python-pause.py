"""Pauses that keep the files alone, by the newest Python SDK; is told E2B_DOMAIN and E2B_API_KEY, prints what it found as JSON."""

import asyncio
import inspect
import json
import socket
import sys

from e2b import CommandExitException, NotFoundException, SandboxException
from e2b_code_interpreter import AsyncSandbox, Sandbox

resolve = socket.getaddrinfo


def resolve_localhost(host, *rest, **options):
    """Every name below `localhost` is this machine: glibc does not know, and /etc/hosts is not ours to edit."""
    name = host.decode() if isinstance(host, bytes) else host
    local = isinstance(name, str) and name.endswith(".localhost")
    return resolve("127.0.0.1" if local else host, *rest, **options)


socket.getaddrinfo = resolve_localhost


async def value_of(answer):
    """What the asynchronous SDK promises, and the other one has."""
    return await answer if inspect.isawaitable(answer) else answer


async def error_of(ask, expected):
    try:
        await value_of(ask())
    except expected as error:
        return type(error).__name__
    return None


async def until_paused(kind, sandbox_id):
    for _ in range(600):
        info = await value_of(kind.get_info(sandbox_id))
        if info.state.value == "paused":
            return True
        await asyncio.sleep(0.1)
    return False


async def on_request(kind):
    sandbox = await value_of(kind.create(timeout=120, metadata={"kept": "yes"}, envs={"KEPT": "too"}))
    try:
        await value_of(sandbox.run_code("x = 42"))
        await value_of(sandbox.files.write("note", "kept"))
        sleeper = await value_of(sandbox.commands.run("sleep 300", background=True, timeout=0))
        paused = [await value_of(sandbox.pause(mode="filesystem")), await value_of(sandbox.pause(mode="filesystem"))]
        found = {
            "paused": paused,
            "ended": await error_of(sleeper.wait, (CommandExitException, SandboxException)) is not None,
            "state": (await value_of(sandbox.get_info())).state.value,
            "running": await value_of(sandbox.is_running()),
        }
        again = await value_of(kind.connect(sandbox.sandbox_id, timeout=120))
        found["metadata"] = (await value_of(again.get_info())).metadata
        found["note"] = await value_of(again.files.read("note"))
        found["envs"] = (await value_of(again.commands.run("echo $KEPT"))).stdout
        found["processes"] = len(await value_of(again.commands.list()))
        found["forgotten"] = (await value_of(again.run_code("x"))).error.name
        found["same_token"] = (await value_of(sandbox.run_code("6 * 7"))).text

        await value_of(sandbox.run_code("x = 43"))
        await value_of(sandbox.pause())
        await value_of(sandbox.connect())
        found["restored"] = (await value_of(sandbox.run_code("x"))).text
        await value_of(sandbox.pause())
        await value_of(sandbox.connect(on_resume="reboot"))
        found["rebooted"] = (await value_of(sandbox.run_code("x"))).error.name
        found["note_after"] = await value_of(sandbox.files.read("note"))
        return found
    finally:
        await value_of(sandbox.kill())


async def at_the_end_of_its_time(kind):
    lifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
    sandbox = await value_of(kind.create(timeout=30, lifecycle=lifecycle))
    try:
        await value_of(sandbox.commands.run("echo kept > note; sleep 300 > /dev/null 2>&1 &"))
        await value_of(sandbox.set_timeout(1))
        paused = await until_paused(kind, sandbox.sandbox_id)
        await value_of(kind.connect(sandbox.sandbox_id, timeout=120))
        left = await value_of(sandbox.commands.run("cat note; pgrep sleep || echo gone"))
        return {"paused": paused, "left": left.stdout}
    finally:
        await value_of(sandbox.kill())


async def main():
    found = {}
    for name, kind in {"sync": Sandbox, "async": AsyncSandbox}.items():
        found[name] = {"on_request": await on_request(kind), "timeout": await at_the_end_of_its_time(kind)}
    found["missing"] = await error_of(lambda: Sandbox.pause("inothing", mode="filesystem"), NotFoundException)
    json.dump(found, sys.stdout)


asyncio.run(main())
