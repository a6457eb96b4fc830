#!/bin/sh
# Stands in for mount(8) of FreeBSD 14, as its manual has it, where there is none: `mount -p` prints what is mounted
# as fstab(5) has it.
# Source: sbin/mount/mount.c (putfsent).
# Not here: mounting, -t, options beyond ro and rw, quoting of blanks, and the old name of a mount point whose parent was
# renamed since (f_mntonname).
[ "$*" = -p ] || { echo "usage: mount -p" >&2; exit 1; }
while read -r _ _ _ _ point options rest; do
  rest=" $rest"
  rest=${rest#* - }
  type=${rest%% *}
  printf '%s\t%s\t%s\t%s\t0 0\n' "$type" "$point" "$type" "${options%%,*}"
done < /proc/self/mountinfo
