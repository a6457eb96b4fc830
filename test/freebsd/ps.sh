#!/bin/sh
# Stands in for ps(1) of FreeBSD 14, as its manual has it, where there is none: `ps -J JAIL -o state=` prints the
# state of every process of a jail, after which there may be letters of other meanings, J for a jail among them; it ends
# with 1 when there is none.
# Source: bin/ps/ps.c (main; addelem_jid) and print.c (state).
# Not here: every other column and selection.
state=$(dirname "$0")/../state
[ "$1 $3 $4" = "-J -o state=" ] || { echo "usage: ps -J jail -o state=" >&2; exit 1; }
[ -f "$state/jails/$2" ] || { echo "ps: Invalid jail id: $2" >&2; exit 1; }
read -r _ init _ < "$state/jails/$2"
code=1
for pid in $(cd /proc && echo [0-9]*); do
  [ "$pid" = "$init" ] || ! [ "/proc/$pid/ns/mnt" -ef "/proc/$init/ns/mnt" ] || { sed 's/.*) \(.\).*/\1J/' "/proc/$pid/stat" 2> /dev/null && code=0; }
done
exit $code
