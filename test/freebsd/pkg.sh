#!/bin/sh
# Stands in for pkg(8) of FreeBSD 14 where there is none, as its manual and that of pkg-query(8) have it:
#
#   pkg -N              says whether pkg itself is installed: it is with state/host-packages
#   pkg query %n        the names there, which are the packages of the host
#
# Source: usr.sbin/pkg/pkg.c (main) and pkg's src/query.c; -N is from memory.
# Not here: every other command.
here=$(dirname "$0")/../state/host-packages
case $* in
-N)
  [ -e "$here" ] || { echo "pkg: pkg is not installed" >&2; exit 1; }
  echo "pkg: $(wc -l < "$here") packages installed" >&2
  ;;
"query %n") exec cat "$here" ;;
*) echo "usage: pkg -N, pkg query %n" >&2; exit 64 ;;
esac
