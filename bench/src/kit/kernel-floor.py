"""Starts a plain kernel; runs each line of stdin in it and prints how many milliseconds that took.

A run is over when the kernel has replied and said that it is idle, as for any client.
"""

import subprocess
import sys
import time

import zmq
from jupyter_client.manager import KernelManager

manager = KernelManager()
manager.start_kernel(stdout=2, stderr=subprocess.DEVNULL)
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
session = client.session
# Of Debian's jupyter_client they are of asyncio.
shell = zmq.Socket.shadow(client.shell_channel.socket.underlying)
iopub = zmq.Socket.shadow(client.iopub_channel.socket.underlying)
poller = zmq.Poller()
poller.register(shell, zmq.POLLIN)
poller.register(iopub, zmq.POLLIN)


def receive(socket):
    _, frames = session.feed_identities(socket.recv_multipart())
    return session.deserialize(frames)


def run(code):
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
    request = session.msg("execute_request", content)
    identifier = request["header"]["msg_id"]
    session.send(shell, request)
    replied = idle = False
    while not (replied and idle):
        for socket, _ in poller.poll():
            message = receive(socket)
            if message["parent_header"].get("msg_id") != identifier:
                continue
            if socket is shell:
                replied = True
            elif message["msg_type"] == "status":
                idle = message["content"]["execution_state"] == "idle"


try:
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        run(line.rstrip("\n"))
        print((time.perf_counter() - started) * 1000, flush=True)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
