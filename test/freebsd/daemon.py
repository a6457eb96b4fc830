#!/usr/bin/python3 -IS
"""Stands in for daemon(8), after usr.sbin/daemon/daemon.c: `daemon [-frS] [-R SECONDS] [-T TAG] [-P FILE] [-p FILE] PROGRAM …`.

  -f   stdin, stdout and stderr of the supervisor are /dev/null; without it they stay the caller's (keep_fds_open)
  -r   the program is begun again when it has ended, after the seconds of -R
  -S   what the program writes goes to syslog(3), here to the file `syslog` of the host's state, tagged by -T
  -P   file with the process id of the supervisor, removed at its end; locked as pidfile_open(3) does
  -p   the same with the process id of the program

The program writes into one pipe of the supervisor, which whatever it leaves running holds as well. Two generations, by the
file `daemon-release` of the host's state, 14 or 15. 14 (the loop of listen_child and sigsuspend): the program is begun
again when it has ended and the pipe too; SIGTERM ends the supervisor at once. 15 (daemon_eventloop, kqueue): after SIGCHLD
it reads the pipe to its end, without a limit of time, before it does anything else, and SIGTERM is passed on.

Not done here: other options, sessions and their terminals, priorities, protection from the pageout killer.
"""
import fcntl
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
    pairs, program = getopt.getopt(sys.argv[1:], "frSR:T:P:p:")
    options = dict(pairs)
    if "-S" not in options or "-P" not in options or not program:
        sys.exit("usage: daemon [-frS] [-R restart_delay_secs] [-T syslog_tag] [-p child_pidfile] [-P supervisor_pidfile] command ...")
    files = {option: open_pid_file(options[option]) for option in ("-P", "-p") if option in options}
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    if "-f" in options:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
    write_pid(files["-P"], os.getpid())
    supervise(options, program, files.get("-p"))
    for option in files:
        os.unlink(options[option])


def open_pid_file(path):
    """As pidfile_open(3): the lock is held until the supervisor ends, and the program does not inherit it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"daemon: process already running, pid: {os.read(file, 16).decode()}")
    return file


def write_pid(file, pid):
    os.ftruncate(file, 0)
    os.pwrite(file, str(pid).encode(), 0)


def supervise(options, program, child_file):
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
        if child_file is not None:
            write_pid(child_file, child.pid)
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
