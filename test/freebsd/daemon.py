#!/usr/bin/python3 -IS
"""Stands in for daemon(8) of FreeBSD 14 as its manual has it: `daemon [-frS] [-R SECONDS] [-T TAG] [-P FILE] [-p FILE] PROGRAM …`.

  -f   stdin, stdout and stderr are /dev/null; without it they stay the caller's (keep_fds_open)
  -r   the program is begun again when it has ended, after the seconds of -R
  -S   what the program writes goes to syslog(3), here to the file `syslog` of the host's state, tagged by -T
  -P   file with the process id of the supervisor, removed at its end; locked as pidfile_open(3) does
  -p   the same with the process id of the program; empty while none runs

The program writes into one pipe of the supervisor, which whatever it leaves running holds as well. After SIGCHLD the
supervisor reads the pipe to its end, without a limit of time, before it does anything else. SIGTERM is passed on.

Source: usr.sbin/daemon/daemon.c (main, open_pid_files, daemon_eventloop, daemon_exec, daemon_set_child_pipe,
listen_child, daemon_sleep, pidfile_truncate, daemon_terminate), with the loop over kqueue(2) of 14.0 and later. That of 13
left at SIGTERM without a look at the pipe.
Not done here: other options, sessions and their terminals, priorities, protection from the pageout killer, lines of more
than 4 KiB, which are parted.
"""
import fcntl
import getopt
import os
import signal
import subprocess
import sys
import time

STATE = os.path.join(os.path.dirname(sys.argv[0]), "..", "state")
USAGE = (
    "usage: daemon [-frS] [-R restart_delay_secs] [-T syslog_tag] [-p child_pidfile] "
    "[-P supervisor_pidfile] command ..."
)


def log(tag, data):
    with open(os.path.join(STATE, "syslog"), "ab") as file:
        for line in data.splitlines():
            file.write(b"%s[%d]: %s\n" % (tag.encode(), os.getpid(), line))


def main():
    pairs, program = getopt.getopt(sys.argv[1:], "frSR:T:P:p:")
    options = dict(pairs)
    if "-S" not in options or "-P" not in options or not program:
        sys.exit(USAGE)
    files = {option: open_pid_file(options[option]) for option in ("-p", "-P") if option in options}
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
        print(f"daemon: process already running, pid: {os.read(file, 16).decode()}", file=sys.stderr)
        sys.exit(3)
    return file


def write_pid(file, pid):
    os.ftruncate(file, 0)
    os.pwrite(file, str(pid).encode(), 0)


def supervise(options, program, child_file):
    tag = options.get("-T", "daemon")
    child, terminated = None, False

    def terminate(*_):
        nonlocal terminated
        terminated = True
        if child is not None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
    while not terminated:
        reader, writer = os.pipe()
        child = subprocess.Popen(program, stdout=writer, stderr=writer)
        os.close(writer)
        if child_file is not None:
            write_pid(child_file, child.pid)
        # A read that waits is gone on with after SIGTERM.
        while data := os.read(reader, 65536):
            log(tag, data)
        os.close(reader)
        child.wait()
        if "-r" not in options or terminated:
            return
        if child_file is not None:
            os.ftruncate(child_file, 0)
        end = time.monotonic() + int(options.get("-R", "1"))
        while not terminated and time.monotonic() < end:
            time.sleep(0.02)


main()
