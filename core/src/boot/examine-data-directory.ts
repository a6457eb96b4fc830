import { constants } from "node:fs";
import { access, mkdtemp, rmdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { messageOf } from "../kernel/errors.js";
import { reasonLedgerUnusable } from "../sandbox/ledger/sqlite-ledger.js";
import type { NamedFinding } from "../observe/finding.js";

const NAME = "dataDir";
const ELSEWHERE = "make it writable for this user, or set dataDir to another directory";

/** Finds out whether a server can keep its data in a directory. Leaves nothing there. @param dataDir absolute. */
export async function examineDataDirectory(dataDir: string): Promise<readonly NamedFinding[]> {
  const existing = await nearestExisting(dataDir);
  try {
    if (!(await stat(existing)).isDirectory()) throw new Error("it is not a directory");
    await access(existing, constants.W_OK | constants.X_OK);
    // root has access everywhere, but no directory can be made in /proc, for example.
    if (existing !== dataDir) await rmdir(await mkdtemp(join(existing, ".coppice-")));
  } catch (error) {
    const message = `${existing} cannot be written: ${messageOf(error)}`;
    return [{ name: NAME, severity: "fail", message, fix: ELSEWHERE }];
  }
  if (existing !== dataDir) return [{ name: NAME, severity: "ok", message: `${dataDir} can be made` }];
  const reason = reasonLedgerUnusable(dataDir);
  if (reason !== undefined) return [{ name: NAME, severity: "fail", message: reason }];
  return [{ name: NAME, severity: "ok", message: `${dataDir} can be written, and no server uses it` }];
}

async function nearestExisting(path: string): Promise<string> {
  for (let nearest = path; ; nearest = dirname(nearest)) {
    const isMissing = await stat(nearest).then(
      () => false,
      (error: NodeJS.ErrnoException) => error.code === "ENOENT",
    );
    if (!isMissing || nearest === dirname(nearest)) return nearest;
  }
}
