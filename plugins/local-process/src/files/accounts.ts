import { SandboxError } from "@coppice/core";
import type { User } from "@coppice/core/backend";

const uid = process.getuid?.() ?? 0;
const gid = process.getgid?.() ?? 0;

/** Accounts of a sandbox. Without isolation, both are the server's account. */
const ACCOUNTS: readonly User[] = [
  { name: "user", uid, gid, home: "/home/user", shell: "/bin/bash" },
  { name: "root", uid, gid, home: "/root", shell: "/bin/bash" },
];

/** @throws SandboxError not_found for names other than `user` (the default) and `root`. */
export function findAccount(name = "user"): User {
  const account = ACCOUNTS.find((candidate) => candidate.name === name);
  if (account === undefined) throw new SandboxError("account_not_found", `unknown user ${name}`);
  return account;
}

/** Name of a uid or gid in a sandbox, or the number as text. */
export function accountName(id: number): string {
  if (id === uid) return "user";
  return id === 0 ? "root" : String(id);
}
