import { readFile } from "node:fs/promises";
import { userInfo } from "node:os";
import { messageOf } from "@coppice/core";
import { findHostProgram } from "./host-programs.js";
import type { Launcher } from "./launcher.js";

/** User namespace in which a server that is not root becomes root. */
export interface UserNamespace {
  /** Arguments of the launcher, see `native/user-namespace.h`. */
  readonly words: readonly string[];
  /** True when sandboxes have all users and groups; otherwise they have one, uid and gid 1000. */
  readonly hasAccounts: boolean;
  /** Reason for a single account; undefined with all accounts. */
  readonly reason?: string | undefined;
}

interface Range {
  readonly start: number;
  readonly count: number;
}

/** Covers the groups and accounts that programs expect, including `nobody`. */
const IDS = 65_536;
const MIN_IDS = 1_001;
const USER_ID = 1_000;

/** Finds the ids that this user may map; undefined for root, who needs no user namespace. */
export async function findUserNamespace(): Promise<UserNamespace | undefined> {
  const uid = process.geteuid?.() ?? 0;
  if (uid === 0) return undefined;
  const gid = process.getegid?.() ?? 0;
  try {
    const users = await findMapping("newuidmap", "/etc/subuid", uid);
    const groups = await findMapping("newgidmap", "/etc/subgid", uid);
    const count = Math.min(users.range.count, groups.range.count, IDS - 1);
    const map = (own: number, { start }: Range): string => `0 ${own} 1 1 ${start} ${count}`;
    // Two lines, because each must map to a single range of the outer namespace.
    const inside = `0 0 1\n1 1 ${count}`;
    const maps = { users: map(uid, users.range), groups: map(gid, groups.range) };
    const words = [users.program, maps.users, groups.program, maps.groups, inside, inside];
    return { words, hasAccounts: true };
  } catch (error) {
    const words = ["", `0 ${uid} 1`, "", `0 ${gid} 1`, `${USER_ID} 0 1`, `${USER_ID} 0 1`];
    return { words, hasAccounts: false, reason: messageOf(error) };
  }
}

async function findMapping(
  program: string,
  file: string,
  uid: number,
): Promise<{ readonly program: string; readonly range: Range }> {
  const names = [String(uid), nameOf(uid)];
  const lines = (await readFile(file, "utf8").catch(() => "")).split("\n");
  const ranges = lines.flatMap((line): Range[] => {
    const [owner = "", start, count] = line.split(":");
    return names.includes(owner) ? [{ start: Number(start), count: Number(count) }] : [];
  });
  const range = ranges.find(({ count }) => count >= MIN_IDS);
  if (range === undefined) throw new Error(`${file} has no range of ids for this user`);
  const path = await findHostProgram([program]);
  if (path === undefined) throw new Error(`the program ${program} is missing`);
  return { program: path, range };
}

function nameOf(uid: number): string {
  try {
    return userInfo().username;
  } catch {
    // The account may be in no database.
    return String(uid);
  }
}

/** Owners of a template's files as its sandboxes see them. The default is root. */
export interface TemplateOwners {
  /** Part of the template's digest: templates with different owners differ. */
  readonly description: string;
  /** False where the server's user owns every file and is called root as well. */
  readonly hasAccounts: boolean;
  /** True when setuid programs of the host have no effect inside. */
  readonly needsOwnSudo: boolean;
  /** Gives a file or directory, without its contents, to the user and group with this id. */
  giveToUser(path: string, id: number): Promise<void>;
}

/** @param users of a server that is not root. */
export function templateOwners(launcher: Launcher, users: UserNamespace | undefined): TemplateOwners {
  const hasAccounts = users?.hasAccounts ?? true;
  return {
    description: users === undefined ? "root" : users.words.join(" "),
    hasAccounts,
    needsOwnSudo: users !== undefined && hasAccounts,
    async giveToUser(path, id) {
      if (!hasAccounts) return;
      // Run by the launcher, which is root of the user namespace.
      const { code, output } = await launcher.run(["chown", "-h", `${id}:${id}`, path]);
      if (code !== 0) throw new Error(output.trim());
    },
  };
}
