#!/bin/sh
# Stands in for pkg(8) of FreeBSD 14 where there is none, as its manual and that of pkg-query(8) have it:
#
#   pkg -r ROOT install -y PACKAGE …
#   pkg -r ROOT query %n-%v             a line for each that is installed: its name, and its version
#   pkg -N                              says whether pkg itself is installed: it is with state/host-packages
#   pkg query %n                        the names there, which are the packages of the host
#
# There is one repository, with what this names in the version that stands in state/pkg-version, or 1.0; what is
# installed is a file in ROOT/var/db/pkg; Python and bash are programs in ROOT/usr/local/bin, where those of FreeBSD are.
# Its first run installs itself, and without ASSUME_ALWAYS_YES it asks whether it may, or fails where stdin is no terminal.
# The -y of install is for pkg itself; some releases take it for an answer here, too.
# Source: usr.sbin/pkg/pkg.c (main, bootstrap_pkg) and pkg's src/install.c, src/query.c; -N is from memory.
# Not here: signatures, repositories, dependencies, scripts of packages.
here=$(dirname "$0")/../state/host-packages
case $* in
-N)
  [ -e "$here" ] || { echo "pkg: pkg is not installed" >&2; exit 1; }
  echo "pkg: $(wc -l < "$here") packages installed" >&2
  exit 0
  ;;
"query %n") exec cat "$here" ;;
esac
[ "$1" = -r ] && [ $# -gt 3 ] || { echo "usage: pkg -r rootdir install -y pkg-name ..., pkg -r rootdir query format" >&2; exit 64; }
root=$2
case "$3 $4" in
"install -y") ;;
"query %n-%v")
  for installed in "$root"/var/db/pkg/*; do
    [ -f "$installed" ] && echo "${installed##*/}-$(cat "$installed")"
  done
  exit 0
  ;;
*) echo "pkg: unknown command" >&2; exit 64 ;;
esac
shift 4
if [ "$ASSUME_ALWAYS_YES" != yes ]; then
  echo 'The package management tool is not yet installed on your system.' >&2
  echo 'Please set ASSUME_ALWAYS_YES=yes environment variable to be able to bootstrap in non-interactive (stdin not being a tty)' >&2
  exit 1
fi
version=$(cat "$(dirname "$0")/../state/pkg-version" 2> /dev/null || echo 1.0)
for name; do
  case $name in
  bash | python311 | py311-ipykernel | py311-numpy | py311-pandas | py311-matplotlib | FreeBSD-runtime) ;;
  *)
    echo "pkg: No packages available to install matching '$name' have been found in the repositories" >&2
    exit 70
    ;;
  esac
done
mkdir -p "$root/var/db/pkg"
for name; do
  echo "Installing $name..."
  echo "$version" > "$root/var/db/pkg/$name"
  [ "$name" = bash ] && mkdir -p "$root/usr/local/bin" && cp /usr/bin/bash "$root/usr/local/bin/bash"
  [ "$name" = python311 ] && mkdir -p "$root/usr/local/bin" && printf '#!/bin/sh\necho Python 3.11\n' > "$root/usr/local/bin/python3.11" &&
    chmod 755 "$root/usr/local/bin/python3.11"
done
exit 0
