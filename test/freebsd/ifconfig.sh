#!/bin/sh
# Stands in for ifconfig(8) of FreeBSD 14 where there is none, as far as it is asked for:
#
#   ifconfig -j JAIL lo0 inet 127.0.0.1/8 up
state=$(dirname "$0")/../state
fail() { echo "ifconfig: $*" >&2; exit 1; }
[ "$1" = -j ] && [ "$3 $4 $6" = "lo0 inet up" ] || fail "usage: ifconfig -j jail lo0 inet address up"
[ -f "$state/jails/$2" ] || fail "jail \"$2\" not found"
read -r _ init _ < "$state/jails/$2"
# Linux gives its loopback the address by itself.
exec nsenter --net="/proc/$init/ns/net" ip link set lo up
