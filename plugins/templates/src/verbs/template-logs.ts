import { setTimeout as pause } from "node:timers/promises";
import { printFailure, SandboxError, type VerbAction } from "@coppice/core";
import { type BuildRecord, LOG_LEVELS, type LogEntry, type LogLevel } from "../model/build-record.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTemplate } from "./find-template.js";
import { REASONS } from "../reasons.js";

const PAGE = 1000;
const POLL_MS = 500;

/** Prints the log of a build, with `--follow` until the build has ended: then a failed one is a failure of the verb. */
export const templateLogs: VerbAction<TemplatesConfig> = (command, { dataDir, print, exit }) =>
  command
    .description("prints the log of a build")
    .argument("<build>", "name, name:tag, or the id of a build")
    .option("-f, --follow", "until it has ended; exit code 1 when it has failed")
    .option("--level <level>", LOG_LEVELS.join(", "), "info")
    .option("--json", "prints a JSON line for each entry")
    .addHelpText("after", "\nExample:\n  coppice template logs coppice.yaml base --follow")
    .action(async (reference, { level, follow, json }) => {
      if (!isLevel(level))
        throw new SandboxError("usage_invalid", `--level is one of ${LOG_LEVELS.join(", ")}`);
      using store = new TemplatesStore(dataDir());
      const { id } = findBuild(store, reference);
      for (let offset = 0; ;) {
        // Before its log, whose last lines are written before its end.
        const build = store.builds.get({ id });
        if (build === undefined) throw new SandboxError(REASONS.build_not_found, `build '${id}' was removed`);
        const entries = store.logs.list(id, { level, limit: PAGE, offset });
        for (const entry of entries) print(json ? JSON.stringify(entryBody(entry)) : entry.message);
        offset += entries.length;
        if (entries.length > 0) continue;
        if (!follow || build.state === "ready") return;
        if (build.state === "error") {
          printFailure(`the build has failed: ${build.reason?.message}`);
          return exit(1);
        }
        await pause(POLL_MS);
      }
    });

/** @throws SandboxError template_not_found, build_not_found */
function findBuild(store: TemplatesStore, reference: string): BuildRecord {
  const named = store.builds.get({ id: reference });
  if (named !== undefined) return named;
  const [name = "", tag = "default"] = reference.split(":");
  const found = store.builds.newest(findTemplate(store, name).id, tag);
  if (found !== undefined) return found;
  throw new SandboxError(REASONS.build_not_found, `template '${name}' has no build with the tag '${tag}'`);
}

function isLevel(text: string): text is LogLevel {
  return (LOG_LEVELS as readonly string[]).includes(text);
}

function entryBody({ atMs, level, step, message }: LogEntry) {
  return { timestamp: new Date(atMs).toISOString(), level, step, message };
}
