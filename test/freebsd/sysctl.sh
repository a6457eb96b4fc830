#!/bin/sh
# Stands in for sysctl(8) of FreeBSD where there is none: `sysctl -n NAME` of what docs/freebsd.md has a host set.
case "$*" in
"-n net.inet.ip.forwarding" | "-n net.link.bridge.pfil_member" | "-n net.link.bridge.pfil_local_phys") echo 1 ;;
*) echo "sysctl: unknown oid '$2'" >&2; exit 1 ;;
esac
