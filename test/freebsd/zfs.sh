#!/bin/sh
# zfs(8) of zfs-fuse: `zfs …`. Commands begin side by side and run one at a time: two that mount together write the halves
# of what they have to say into one pipe of the daemon, whose reader then waits for the rest of a path, with all of its
# requests behind it, and two that begin together can be given each other's connection.
#
# The first `destroy` of a filesystem that begins while another command runs says that it is busy, as ZFS does while
# something holds it (module/zfs/dsl_destroy.c, dsl_destroy_head_check_impl: EBUSY for holds beyond those it expects).
# A dying jail refers to its root (sys/kern/kern_jail.c, prison_deref: pr_root), which is not unmounted without -f then.
# Not done here: commands that really run together, and what they hold of each other's datasets.
state=$(dirname "$0")/../state
case "$1 $2" in
"destroy -"* | "unmount -"*) ;;
"destroy "* | "unmount "*)
  point=$(findmnt --noheadings --raw --output TARGET --source "$2")
  if [ -n "$point" ] && "$(dirname "$0")/jls" -d dying path | grep -qxF "true $point"; then
    echo "cannot unmount '$point': pool or dataset is busy" >&2
    exit 1
  fi
  ;;
esac
if [ "$1" = destroy ]; then
  for last; do :; done
  mark=$state/busy/$(echo "$last" | tr / %)
  mkdir -p "$state/busy"
  case $last in
  *@*) ;;
  *)
    if [ ! -e "$mark" ] && ! flock --nonblock "$state/zfs.lock" true; then
      : > "$mark"
      echo "cannot destroy '$last': dataset is busy" >&2
      exit 1
    fi
    rm -f "$mark"
    ;;
  esac
fi
exec flock --no-fork "$state/zfs.lock" /usr/sbin/zfs "$@"
