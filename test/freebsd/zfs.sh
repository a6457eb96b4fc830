#!/bin/sh
# zfs(8) of zfs-fuse, one command at a time: `zfs …`. Two that mount side by side write the halves of what they have
# to say into one pipe of the daemon, whose reader then waits for the rest of a path with all of its requests behind
# it. Commands that begin side by side can be given each other's connection.
exec flock --no-fork "$(dirname "$0")/../state/zfs.lock" /usr/sbin/zfs "$@"
