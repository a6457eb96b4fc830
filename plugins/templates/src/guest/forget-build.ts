import type { Sandbox } from "@coppice/core/backend";
import { runScript } from "./guest-run.js";

/** 2020-01-01, which also archives of kinds without earlier years can have. */
const EPOCH = 1_577_836_800;

/**
 * Empties the files that a backend writes for each sandbox, and sets the times of what is new. Parameters: the second
 * before the sandbox began, and a new file to compare with. busybox compares with files alone.
 */
const FORGET = `
cd / || exit
for file in /etc/hostname /etc/hosts /etc/resolv.conf; do
  [ ! -f "$file" ] || [ -L "$file" ] || : > "$file"
done
touch -d "@$1" "$2" &&
  find / -xdev \\( -path /dev -o -path /proc \\) -prune -o -newer "$2" -exec touch -h -d @${EPOCH} {} +
code=$?
rm -f "$2" && touch -d @${EPOCH} / && exit $code
`;

/**
 * Removes from the files of a sandbox when and where they were made.
 * @param beganAtMs when the sandbox did. @returns false where the image lacks programs for it.
 */
export async function forgetBuild(
  sandbox: Sandbox,
  beganAtMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  const args = [String(Math.floor(beganAtMs / 1000) - 1), `/.${sandbox.id}`];
  const { exit } = await runScript(sandbox, FORGET, { args, shell: "sh", signal });
  return exit.code === 0;
}
