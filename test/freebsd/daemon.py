#!/usr/bin/python3 -IS
"""Stands in for daemon(8), after usr.sbin/daemon/daemon.c: `daemon [-frS] [-R SECONDS] [-T TAG] [-P FILE] PROGRAM …`.

  -f   stdin, stdout and stderr of the supervisor are /dev/null; without it they stay the caller's (keep_fds_open)
  -r   the program is begun again when it has ended, after the seconds of -R
  -S   what the program writes goes to syslog(3), here to the file `syslog` of the host's state, tagged by -T
  -P   file with the process id of the supervisor, removed at its end

The program writes into one pipe of the supervisor, which whatever it leaves running holds as well. Two generations, by the
file `daemon-release` of the host's state, 14 or 15. 14 (the loop of listen_child and sigsuspend): the program is begun
again when it has ended and the pipe too; SIGTERM ends the supervisor at once. 15 (daemon_eventloop, kqueue): after SIGCHLD
it reads the pipe to its end, without a limit of time, before it does anything else, and SIGTERM is passed on.

Not done here: other options, sessions and their terminals, the lock of the pid file, restarts by SIGHUP, priorities.
"""
import getopt
import os
import signal
import subprocess
import sys
import time

STATE = os.path.join(os.path.dirname(sys.argv[0]), "..", "state")


def release():
    try:
        with open(os.path.join(STATE, "daemon-release"), encoding="utf8") as file:
            return int(file.read())
    except FileNotFoundError:
        return 15


def log(tag, data):
    with open(os.path.join(STATE, "syslog"), "ab") as file:
        for line in data.splitlines():
            file.write(b"%s: %s\n" % (tag.encode(), line))


def main():
    pairs, program = getopt.getopt(sys.argv[1:], "frSR:T:P:")
    options = dict(pairs)
    if "-S" not in options or "-P" not in options or not program:
        sys.exit("usage: daemon [-frS] [-R restart_delay_secs] [-T syslog_tag] [-P supervisor_pidfile] command ...")
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    if "-f" in options:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
    with open(options["-P"], "w", encoding="utf8") as file:
        file.write(str(os.getpid()))
    supervise(options, program)
    os.unlink(options["-P"])


def supervise(options, program):
    tag = options.get("-T", "daemon")
    is_old = release() < 15
    child, terminated = None, False

    def terminate(*_):
        nonlocal terminated
        terminated = True
        if child is not None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
    while not terminated:
        reader, writer = os.pipe()
        child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        os.close(writer)
        os.set_blocking(reader, False)
        has_ended = False
        while True:
            try:
                data = os.read(reader, 65536)
                log(tag, data)
                has_ended = has_ended or data == b""
            except BlockingIOError:
                pass
            is_gone = child.poll() is not None
            # In both generations the program is not begun again before the pipe has ended. The older leaves at SIGTERM.
            if has_ended and is_gone or is_old and terminated:
                break
            time.sleep(0.02)
        os.close(reader)
        if "-r" not in options:
            return
        end = time.monotonic() + int(options.get("-R", "1"))
        while not terminated and time.monotonic() < end:
            time.sleep(0.02)


main()
