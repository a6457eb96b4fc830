import { type Clock, within } from "@coppice/core";
import { DEFAULT_PATH, runToEnd, type Sandbox, type Signal } from "@coppice/core/backend";

export interface SignalTreeOptions {
  /** The process is signalled, too, and before the others: a script would go on with its next command. */
  readonly includesRoot: boolean;
  readonly clock: Clock;
  /** Time for the helper, which is a program of the sandbox's: it may hang. */
  readonly timeoutMs: number;
}

/** Prints the processes as pairs of pid and parent: from /proc where it is Linux's, else by ps(1). */
const SCRIPT = `
name=$1 root=$2 including=$3
pairs() {
  if [ -r /proc/self/stat ]; then
    for stat in /proc/[0-9]*/stat; do
      { IFS= read -r line < "$stat"; } 2>/dev/null || continue
      rest=\${line##*) }
      set -- $rest
      echo "\${line%% *} $2"
    done
  else ps -A -o pid= -o ppid=; fi
}
list=$(pairs)
found=" $root "
next=$root
while [ -n "$next" ]; do
  parents=" $next " next=
  while read -r pid parent; do
    case "$parents" in *" $parent "*) ;; *) continue ;; esac
    case "$found" in *" $pid "*) continue ;; esac
    found="$found$pid " next="$next $pid"
  done <<END
$list
END
done
for pid in $found; do
  [ "$pid" = "$root" ] && [ "$including" != yes ] && continue
  [ "$pid" = "$$" ] || kill -s "$name" "$pid" 2>/dev/null
done
exit 0`;

/** Signals what descends from a process of a sandbox, whatever process groups they have made. */
export async function signalTree(
  runtime: Sandbox,
  pid: number,
  signal: Signal,
  { includesRoot, ...limit }: SignalTreeOptions,
): Promise<void> {
  const args = ["-c", SCRIPT, "sh", signal.slice(3), String(pid), includesRoot ? "yes" : "no"];
  const env = { PATH: DEFAULT_PATH };
  const helper = await runtime.spawn({ path: "/bin/sh", args, env, cwd: "/", input: "none" });
  await within((until) => runToEnd(helper, { signal: until }), limit).catch(() => undefined);
}
