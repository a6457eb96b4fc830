#!/bin/sh
# Stands in for rctl(8) of FreeBSD 14, as its manual has it, where there is none, for rules that deny something to a
# jail:
#
#   rctl                                        lists the rules
#   rctl -a jail:NAME:RESOURCE:deny=AMOUNT …    adds them; of the same jail and resource the last one holds
#   rctl -r jail:NAME                           removes those of a jail
#   rctl -u jail:NAME …                         prints what they use, one after the other, without a word of whose it is
#
# As in the manual, the jail need not exist. Control groups hold jails to swapuse, maxproc and pcpu, where set-up-host.sh
# found some; the other resources of a rule are kept and listed. memoryuse denies nothing: the kernel pages out what is
# beyond it (sys/vm/vm_swapout.c, vm_daemon: RACCT_RSS), which Linux cannot do for one group without swap. swapuse denies
# what is reserved beyond it (sys/vm/swap_pager.c, swap_reserve_by_cred); here what is used beyond it ends a process.
# Not here: other subjects, actions and units of account, -h, -n, -l.
# Source: usr.bin/rctl/rctl.c (main, expand_rule, add_rule, remove_rule, show_usage, show_rules).
state=${0%/*}/../state
rules=$state/rctl

fail() {
  echo "rctl: $*" >&2
  failures=$((failures + 1))
}

# The directory of a jail's group: `group CONTROLLER NAME`; of version 2 when there is cgroup.controllers in it.
group() {
  directory=
  while read -r controller parent; do
    [ "$controller" = "$1" ] && directory=$parent/$2
  done < "$state/control-groups"
  [ -n "$directory" ]
}

bytes() {
  case $1 in
  *[Kk]) amount=$((${1%?} * 1024)) ;;
  *[Mm]) amount=$((${1%?} * 1048576)) ;;
  *[Gg]) amount=$((${1%?} * 1073741824)) ;;
  *) amount=$1 ;;
  esac
}

hold() {
  case $2 in
  swapuse) group memory "$1" || return 0 ;;
  maxproc) group pids "$1" || return 0 ;;
  pcpu) group cpu "$1" || return 0 ;;
  *) return 0 ;;
  esac
  [ -d "$directory" ] || mkdir "$directory"
  is_unified=
  [ -e "$directory/cgroup.controllers" ] && is_unified=1
  case $2$is_unified in
  swapuse) echo "$3" > "$directory/memory.limit_in_bytes" ;;
  swapuse1) echo "$3" > "$directory/memory.max" && { echo 0 > "$directory/memory.swap.max" || true; } ;;
  maxproc*) echo "$3" > "$directory/pids.max" ;;
  pcpu) echo $(($3 * 1000)) > "$directory/cpu.cfs_quota_us" ;;
  pcpu1) echo "$(($3 * 1000)) 100000" > "$directory/cpu.max" ;;
  esac 2> /dev/null
}

add() {
  IFS=: read -r subject name resource action << END
$1
END
  [ "$subject" = jail ] && [ -n "$name" ] && [ "${action%%=*}" = deny ] || { fail "malformed rule '$1'"; return 1; }
  bytes "${action#*=}"
  case $resource$amount in
  *[!a-z0-9]*) fail "malformed rule '$1'"; return 1 ;;
  esac
  hold "$name" "$resource" "$amount" || { fail "failed to add rule '$1': Invalid argument"; return 1; }
  kept=
  [ -f "$rules/$name" ] && while read -r line; do
    [ "${line%%:*}" = "$resource" ] || kept="$kept$line
"
  done < "$rules/$name"
  printf '%s%s:deny=%s\n' "$kept" "$resource" "$amount" > "$rules/$name"
}

# New processes of the jail join its groups: jexec reads this.
join() {
  name=${1#jail:}
  name=${name%%:*}
  while read -r controller parent; do
    [ -d "$parent/$name" ] || mkdir "$parent/$name"
    if [ -e "$parent/$name/cgroup.controllers" ]; then echo "$parent/$name/cgroup.procs"; else echo "$parent/$name/tasks"; fi
  done < "$state/control-groups" > "$state/groups/$name"
}

remove() {
  name=${1#jail:}
  [ -f "$rules/$name" ] || { fail "failed to remove rule '$1': No such process"; return; }
  directories=
  while read -r _ parent; do directories="$directories $parent/$name"; done < "$state/control-groups"
  # Processes leave the groups a moment after their end is visible.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    # shellcheck disable=SC2086
    rmdir $directories 2> /dev/null
    for directory in $directories; do [ ! -d "$directory" ] || { sleep 0.02; continue 2; }; done
    break
  done
  rm -f "$state/groups/$name" "$state/usage/$name" "$rules/$name"
}

# A field of a file of a group: `field FILE NAME`.
field() {
  value=0
  while read -r key rest; do
    [ "$key" != "$2" ] || value=$rest
  done < "$1"
}

use() {
  name=${1#jail:}
  micros=0 memory=0 processes=0 percent=0
  if group cpuacct "$name" && [ -e "$directory/cpuacct.usage" ]; then
    read -r nanos < "$directory/cpuacct.usage"
    micros=$((nanos / 1000))
  elif group cpu "$name" && [ -e "$directory/cpu.stat" ]; then
    field "$directory/cpu.stat" usage_usec
    micros=$value
  fi
  if group memory "$name" && [ -e "$directory/memory.usage_in_bytes" ]; then
    field "$directory/memory.stat" total_rss && memory=$value
    field "$directory/memory.stat" total_shmem && memory=$((memory + value))
  elif [ -e "$directory/memory.stat" ]; then
    field "$directory/memory.stat" anon && memory=$value
    field "$directory/memory.stat" shmem && memory=$((memory + value))
  fi
  if group pids "$name" && [ -e "$directory/pids.current" ]; then read -r processes < "$directory/pids.current"; fi
  # Since it was asked last; the kernel of FreeBSD forgets bit by bit.
  read -r seconds _ < /proc/uptime
  now=$((${seconds%.*} * 100 + 1${seconds#*.} - 100))
  [ -f "$state/usage/$name" ] && read -r before used < "$state/usage/$name" && [ "$now" -gt "$before" ] &&
    percent=$(((micros - used) / (now - before) / 100))
  echo "$now $micros" > "$state/usage/$name"
  cat << END
cputime=$((micros / 1000000))
datasize=0
stacksize=0
coredumpsize=0
memoryuse=$memory
memorylocked=0
maxproc=$processes
openfiles=0
vmemoryuse=0
pseudoterminals=0
swapuse=0
nthr=$processes
msgqqueued=0
msgqsize=0
nmsgq=0
nsem=0
nsemop=0
nshm=0
shmsize=0
wallclock=0
pcpu=$percent
readbps=0
writebps=0
readiops=0
writeiops=0
END
}

failures=0
case $1 in
-a)
  shift
  for rule; do add "$rule" && join "$rule"; done
  ;;
-r)
  shift
  for rule; do remove "$rule"; done
  ;;
-u)
  shift
  for rule; do use "$rule"; done
  ;;
"")
  for file in "$rules"/*; do
    [ -f "$file" ] && while read -r line; do echo "jail:${file##*/}:$line"; done < "$file"
  done
  ;;
*)
  echo "usage: rctl [ -h ] [-a rule | -l filter | -r filter | -u filter | filter]" >&2
  exit 1
  ;;
esac
exit $failures
