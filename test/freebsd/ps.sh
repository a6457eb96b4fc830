#!/bin/sh
# Stands in for ps(1) of FreeBSD 14, as its manual has it, where there is none: `ps -J JAIL -o state=` prints the
# state of every process of a jail.
state=$(dirname "$0")/../state
[ "$1 $3 $4" = "-J -o state=" ] || { echo "usage: ps -J jail -o state=" >&2; exit 1; }
[ -f "$state/jails/$2" ] || { echo "ps: Invalid jail ID or name: $2" >&2; exit 1; }
read -r _ init _ < "$state/jails/$2"
for pid in $(find /proc/[0-9]*/ns/pid -lname "$(readlink "/proc/$init/ns/pid" | sed "s/[][]/\\\\&/g")" 2> /dev/null | cut -d / -f 3); do
  [ "$pid" = "$init" ] || sed 's/.*) \(.\).*/\1/' "/proc/$pid/stat" 2> /dev/null
done
exit 0
