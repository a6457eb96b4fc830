#!/bin/sh
# zfs(8) of zfs-fuse: `zfs …`. Commands run together, but those that can mount or unmount run one at a time: two of them
# write the halves of what they have to say into one pipe of the daemon, whose reader then waits for the rest of a path,
# with all of its requests behind it.
#
# The first `destroy` of a filesystem that begins while another of these runs says that it is busy, as ZFS does while
# something holds it (module/zfs/dsl_destroy.c, dsl_destroy_head_check_impl: EBUSY for holds beyond those it expects).
# A dying jail refers to its root (sys/kern/kern_jail.c, prison_deref: pr_root), which is not unmounted without -f then.
#
# OpenZFS keeps back a slop of each pool. What users write, `create`, `clone` and `snapshot` get nothing of it
# (ZFS_SPACE_CHECK_NORMAL), `set`, `inherit`, `rename` and `promote` half (module/zfs/dsl_prop.c, dsl_props_set; dsl_dir.c,
# dsl_dir_rename; dsl_dataset.c, dsl_dataset_promote: ZFS_SPACE_CHECK_RESERVED), and `destroy` asks for none
# (dsl_destroy.c, dsl_destroy_head; dsl_synctask.c, dsl_sync_task_sync). zfs-fuse refuses `set` in a full pool. So the slop
# is a reservation here, half of which those commands may use; without that dataset it is used up.
#
# Not done here: two commands that mount, really run together, and what they hold of each other's datasets. zpool(8) has no stand-in:
# no part of Coppice calls it but scripts/freebsd-smoke.sh and scripts/freebsd-vm-steps.sh, which need FreeBSD.
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
case "$* " in
"get "* | "list "* | "snapshot "* | "destroy "*@*) exec /usr/sbin/zfs "$@" ;;
"set "* | "inherit "* | "rename "* | "promote "*)
  exec 9> "$state/zfs.lock"
  case $2 in coppice:* | refquota=*) ;; *) flock 9 ;; esac
  said=$(/usr/sbin/zfs "$@" 2>&1) && exit 0
  code=$?
  for last; do :; done
  slop=${last%%/*}/slop
  case $said in
  *"out of space"*)
    flock 9
    if /usr/sbin/zfs set refreservation=64M "$slop" 2> /dev/null; then
      said=$(/usr/sbin/zfs "$@" 2>&1)
      code=$?
      /usr/sbin/zfs set refreservation=128M "$slop" 2> /dev/null ||
        /usr/sbin/zfs set refreservation="$(/usr/sbin/zfs get -Hp -o value available "$slop")" "$slop"
    fi
    ;;
  esac
  [ -z "$said" ] || echo "$said" >&2
  exit "$code"
  ;;
esac
exec flock --no-fork "$state/zfs.lock" /usr/sbin/zfs "$@"
