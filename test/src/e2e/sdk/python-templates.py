"""Templates, by both clients of the newest Python SDK; is told where the server and the files are, prints what it found as JSON."""

import asyncio
import inspect
import json
import sys

from e2b import AsyncSandbox, AsyncTemplate, BuildException, Sandbox, Template, wait_for_timeout

context = sys.argv[1]


async def value_of(answer):
    """What the asynchronous SDK promises, and the other one has."""
    return await answer if inspect.isawaitable(answer) else answer


async def findings(kind, sandboxes, name):
    lines = []
    template = (
        kind(file_context_path=context)
        .from_image("ubuntu:22.04")
        .copy("file.txt", "copied.txt")
        # A line of its own: the other client's result would be taken from the cache.
        .run_cmd(f"cat copied.txt # {name}")
        .set_envs({"LATER": "seen"})
        .set_start_cmd('echo "$LATER" > started; sleep 600', wait_for_timeout(1000))
    )
    built = await value_of(kind.build(template, f"{name}:v1", on_build_logs=lambda entry: lines.append(entry.message)))
    found = {
        "tags": built.tags,
        "copied": any("[stdout]: copied" in line for line in lines),
        "exists": [await value_of(kind.exists(f"{name}:v1")), await value_of(kind.exists(f"{name}:v2"))],
        "assigned": (await value_of(kind.assign_tags(f"{name}:v1", ["v2", "v3"]))).tags,
    }
    await value_of(kind.remove_tags(name, ["v3"]))
    found["left"] = [tag.tag for tag in await value_of(kind.get_tags(name))]
    sandbox = await value_of(sandboxes.create(f"{name}:v2"))
    try:
        found["started"] = await value_of(sandbox.files.read("started"))
        found["listed"] = [process.args[-1] for process in await value_of(sandbox.commands.list())]
        found["name"] = (await value_of(sandbox.get_info())).name
    finally:
        await value_of(sandbox.kill())
    failing = kind().from_template(f"{name}:v1").run_cmd("exit 3")
    try:
        await value_of(kind.build(failing, f"{name}-failing"))
    except BuildException as error:
        found["failure"] = str(error)
    return found


async def main():
    sync = await findings(Template, Sandbox, "python-sync")
    asynchronous = await findings(AsyncTemplate, AsyncSandbox, "python-async")
    json.dump({"sync": sync, "async": asynchronous}, sys.stdout)


asyncio.run(main())
