#!/bin/sh
# Stands in for umount(8) of FreeBSD 14, as its manual has it, where there is none: `umount -f DIRECTORY`, which
# succeeds also while the file system is in use.
[ "$1" = -f ] && [ $# = 2 ] || { echo "usage: umount -f directory" >&2; exit 1; }
# The stand-in's devfs consists of three mounts: the first takes the others along.
mountpoint -q "$2" || exit 0
exec /bin/umount -l "$2"
