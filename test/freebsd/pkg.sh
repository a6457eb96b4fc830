#!/bin/sh
# Stands in for pkg(8) of FreeBSD where there is none: `pkg -r ROOT install -y PACKAGE …`. There is one repository, with
# what this names; what is installed stands in ROOT/var/db/pkg, and a Python is a link in ROOT/usr/local/bin.
[ "$1 $3 $4" = "-r install -y" ] && [ $# -gt 4 ] || { echo "usage: pkg -r rootdir install -y pkg-name ..." >&2; exit 64; }
root=$2
shift 4
for name; do
  case $name in
  python311 | py311-ipykernel | py311-numpy | py311-pandas | py311-matplotlib | FreeBSD-runtime) ;;
  *)
    echo "pkg: No packages available to install matching '$name' have been found in the repositories" >&2
    exit 70
    ;;
  esac
done
mkdir -p "$root/var/db/pkg"
for name; do
  echo "Installing $name..."
  : > "$root/var/db/pkg/$name"
  [ "$name" = python311 ] && mkdir -p "$root/usr/local/bin" && printf '#!/bin/sh\necho Python 3.11\n' > "$root/usr/local/bin/python3.11" &&
    chmod 755 "$root/usr/local/bin/python3.11"
done
exit 0
