# Requests a kernel from the sandbox's zygote and represents it: the kernel has this process's environment, folder and
# output, ends when this process is killed, and determines its exit. It imports almost nothing, because every kernel
# waits for it and each has one.
import _socket
import os
import signal
import sys


def quoted(text):
    pieces = ['"']
    for character in text:
        code = ord(character)
        if character in '"\\' or code < 0x20 or code > 0x7E:
            if code > 0xFFFF:
                code -= 0x10000
                pieces.append("\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF)))
            else:
                pieces.append("\\u%04x" % code)
        else:
            pieces.append(character)
    pieces.append('"')
    return "".join(pieces)


source = sys.stdin.buffer
start = source.read(int(source.readline())).decode()
environment = ",".join(quoted(name) + ":" + quoted(value) for name, value in os.environ.items())
folder = quoted(os.getcwd())
request = start[:-1] + ',"folder":' + folder + ',"environment":{' + environment + "}}"
message = request.encode()

zygote = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
name = sys.argv[1]
zygote.connect("\0" + name if sys.platform == "linux" else "/tmp/" + name)
with open(os.devnull) as nothing:
    fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (nothing.fileno(), 1, 2))
    head = b"%d\n" % len(message)
    zygote.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
zygote.sendall(message)
# The output ends only when both processes have closed these.
for fd in (1, 2):
    os.close(fd)

how = zygote.recv(16)
if not how:
    os.kill(os.getpid(), signal.SIGKILL)  # The zygote is gone, and the kernel with it.
code = int(how)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
os._exit(code if code >= 0 else 128 - code)
