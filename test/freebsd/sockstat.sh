#!/bin/sh
# Stands in for sockstat(1) of FreeBSD 14, as its manual has it, where there is none: `sockstat -q -4 -6 -l` of a host
# with a daemon for its clock, and what plays a name server at an address of its own.
# Source: usr.bin/sockstat/sockstat.c (display, displaysock).
# Not here: what listens on this host, other states and protocols, -j.
[ "$*" = "-q -4 -6 -l" ] || { echo "usage: sockstat -q -4 -6 -l" >&2; exit 1; }
cat << END
ntpd     ntpd         812 20  udp4   *:123                 *:*
root     unbound      790 4   udp4   203.0.113.1:53        *:*
END
