#!/bin/sh
# Prints what is left of the sandboxes of jail-freebsd, and fails if that is anything:
#
#   scripts/freebsd-left-over.sh DIRECTORY DATASET [SECONDS]
#
# DIRECTORY and DATASET are the settings of the plugin. SECONDS, 30 when absent, is how long it waits for the last remains:
# tables of replaced rules hold their anchor until pf's purge thread frees them.
directory=$1 dataset=$2
left_over() {
  jls name | grep e2b-
  mount -p | grep "$directory/roots/e2b-"
  zfs list -H -o name -r "$dataset" | grep -E '/(e2b|volume)-'
  rctl | grep jail:e2b-
  pfctl -a coppice -s Anchors
  posixshmcontrol ls | grep "$directory/roots/"
  find "$directory/conf" "$directory/roots" "$directory/sockets" "$directory/helpers" -mindepth 1 -maxdepth 1
}
for _ in $(seq "${3-30}"); do
  left=$(left_over 2> /dev/null)
  [ -n "$left" ] || exit 0
  sleep 1
done
echo "$left"
exit 1
