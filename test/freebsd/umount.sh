#!/bin/sh
# Stands in for umount(8) of FreeBSD 14, as its manual has it, where there is none: `umount -f DIRECTORY …`, which
# succeeds also while a file system is in use, and ends with 1 when one of them is none, with the others unmounted.
# Source: sbin/umount/umount.c (checkname, checkmntlist, umountfs; MNT_FORCE).
# Not here: -a, -A, -h, NFS, and file systems by their device.
[ "$1" = -f ] && [ $# -gt 1 ] || { echo "usage: umount [-fNnv] special ... | node ... | fsid ..." >&2; exit 1; }
shift
code=0
for point; do
  mountpoint -q "$point" || { echo "umount: $point: not a file system root directory" >&2; code=1; continue; }
  /bin/umount -l "$point" || code=1
done
exit $code
