#!/bin/sh
# Stands in for pkill(1) of FreeBSD 14, as its manual has it, where there is none: `pkill -SIGNAL -j JAIL` signals
# every process of a jail, and ends with 1 when there was none, with 2 when there is no such jail.
# Source: bin/pkill/pkill.c (main, makelist, killact; STATUS_MATCH, STATUS_NOMATCH, STATUS_BADUSAGE).
# Not here: patterns, users, groups, terminals, -l, and a list of jails.
state=$(dirname "$0")/../state
[ "$2" = -j ] && [ $# = 3 ] || { echo "usage: pkill -signal -j jail" >&2; exit 2; }
[ -f "$state/jails/$3" ] || { echo "pkill: Invalid jail ID or name \`$3'" >&2; exit 2; }
read -r _ init _ < "$state/jails/$3"
found=1
# The first process of the namespaces is what FreeBSD's jails do not have.
for pid in $(cd /proc && echo [0-9]*); do
  [ "$pid" = "$init" ] || ! [ "/proc/$pid/ns/mnt" -ef "/proc/$init/ns/mnt" ] || { kill "$1" "$pid" 2> /dev/null && found=0; }
done
exit $found
