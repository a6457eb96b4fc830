#!/bin/sh
# Stands in for sysctl(8) of FreeBSD 14, as its manual has it, where there is none: `sysctl -n NAME` prints the value
# of what docs/freebsd.md has a host set, `sysctl -N security.jail.param` the names of what jails can be given, those
# of them that matter here; nodes that hold others end with a dot.
# Source: sbin/sysctl/sysctl.c (parse, show_var).
# Not here: other variables, types, and setting.
case "$*" in
"-n net.inet.ip.forwarding" | "-n net.link.bridge.pfil_member" | "-n net.link.bridge.pfil_local_phys") echo 1 ;;
"-N security.jail.param")
  for name in allow.settime allow.adjtime allow.extattr allow.mount. allow.mount.devfs allow.raw_sockets securelevel path name jid; do
    echo "security.jail.param.$name"
  done
  ;;
*) echo "sysctl: unknown oid '$2'" >&2; exit 1 ;;
esac
