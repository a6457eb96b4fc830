import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { printFailure, SandboxError, type VerbAction } from "@coppice/core";
import { type BuildRecord, LOG_LEVELS, type LogEntry, type LogLevel } from "../model/build-record.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTemplate } from "./find-template.js";
import { REASONS } from "../reasons.js";

const PAGE = 1000;
const POLL_MS = 500;

/** Prints the log of a build, with `--follow` until the build has ended: then a failed one is a failure of the verb. */
export const templateLogs: VerbAction<TemplatesConfig> = {
  usage: "<name[:tag] or id of a build> [--follow] [--level info] [--json]",
  async run({ args, dataDir, print }) {
    const { values, positionals } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        follow: { type: "boolean", default: false },
        level: { type: "string", default: "info" },
        json: { type: "boolean", default: false },
      },
    });
    const [reference, ...others] = positionals;
    if (reference === undefined || others.length > 0)
      throw new SandboxError("usage_invalid", "name one template or build");
    const { level, follow, json } = values;
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
      if (!follow) return 0;
      if (build.state === "ready") return 0;
      if (build.state === "error") {
        printFailure(`the build has failed: ${build.reason?.message}`);
        return 1;
      }
      await pause(POLL_MS);
    }
  },
};

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
