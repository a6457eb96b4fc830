#!/bin/sh
# Stands in for pw(8) of FreeBSD 14, as its manual has it, where there is none:
#
#   pw -R ROOT useradd NAME [-u UID] -m -s SHELL
#   pw -R ROOT usershow NAME          name:*:uid:gid:class:change:expire:gecos:home:shell
# Source: usr.sbin/pw/pw_user.c (pw_user_add, pw_user_show, print_user).
# Not here: pwd_mkdb(8) and its databases, groups, classes, passwords, skeletons.
[ "$1" = -R ] || { echo "usage: pw -R rootdir useradd|usershow name" >&2; exit 64; }
root=$2 verb=$3 name=$4
passwd=$root/etc/passwd
line=$(grep "^$name:" "$passwd" 2> /dev/null)
case $verb in
useradd)
  [ -z "$line" ] || { echo "pw: login name \`$name' already exists" >&2; exit 65; }
  shift 4
  uid=1001
  while cut -d : -f 3 "$passwd" | grep -qx $uid; do uid=$((uid + 1)); done
  while [ $# -gt 0 ]; do
    case $1 in
    -u) uid=$2; shift ;;
    -s) shell=$2; shift ;;
    -m) ;;
    *) echo "pw: illegal option -- $1" >&2; exit 64 ;;
    esac
    shift
  done
  echo "$name:x:$uid:$uid::/home/$name:$shell" >> "$passwd"
  echo "$name:x:$uid:" >> "$root/etc/group"
  mkdir -p "$root/home/$name"
  chown "$uid:$uid" "$root/home/$name"
  ;;
usershow)
  [ -n "$line" ] || { echo "pw: no such user \`$name'" >&2; exit 67; }
  echo "$line" | awk -F : '{ print $1 ":*:" $3 ":" $4 "::0:0:" $5 ":" $6 ":" $7 }'
  ;;
*) exit 64 ;;
esac
