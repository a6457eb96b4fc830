#!/bin/sh
# Stands in for route(8) of FreeBSD 14, as its manual has it, where there is none: `route -j JAIL -n add default
# GATEWAY`.
# Source: sbin/route/route.c (newroute).
# Not here: every other verb, flag and family.
state=$(dirname "$0")/../state
[ "$1 $3 $4 $5" = "-j -n add default" ] && [ $# = 6 ] || { echo "usage: route -j jail -n add default gateway" >&2; exit 64; }
[ -f "$state/jails/$2" ] || { echo "route: jail \"$2\" not found" >&2; exit 1; }
read -r _ init _ < "$state/jails/$2"
nsenter --net="/proc/$init/ns/net" ip route add default via "$6" || { echo "route: message indicates error: File exists" >&2; exit 1; }
echo "add net default: gateway $6"
