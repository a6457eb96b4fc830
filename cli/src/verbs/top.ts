import { setTimeout as pause } from "node:timers/promises";
import { MEBIBYTE } from "@coppice/core/client";
import { Sandbox, type SandboxMetrics } from "e2b";
import { connectionOf, type ServerOptions } from "../connection/connection.js";
import { printRows, type RowOptions } from "../connection/print.js";
import { everySandbox } from "./lifecycle.js";

const COLUMNS = ["id", "template", "cpu", "memory", "disk", "measured"];
const EVERY_MS = 2_000;
/** Requests at a time. */
const AT_A_TIME = 8;
/** The whole screen, and the cursor at its begin. */
const CLEAR = "\u001B[H\u001B[2J";

/** Shows what running sandboxes use: again and again on a terminal, once elsewhere or with `--once`. */
export async function top(
  ids: readonly string[],
  { once, ...options }: ServerOptions & RowOptions & { readonly once?: true | undefined },
): Promise<number> {
  const isRepeated = process.stdout.isTTY && !once && !options.json;
  for (;;) {
    const running = await everySandbox(options, { state: ["running"] });
    const shown = running.filter(({ sandboxId }) => ids.length === 0 || ids.includes(sandboxId));
    const rows = [];
    for (let at = 0; at < shown.length; at += AT_A_TIME)
      rows.push(
        ...(await Promise.all(
          shown.slice(at, at + AT_A_TIME).map(async ({ sandboxId, name, templateId }) => ({
            id: sandboxId,
            template: name ?? templateId,
            ...usage(await newest(sandboxId, options)),
          })),
        )),
      );
    if (isRepeated) process.stdout.write(CLEAR);
    printRows(COLUMNS, rows, options);
    if (!isRepeated) return 0;
    await pause(EVERY_MS);
  }
}

/** Undefined for one that ended meanwhile, or was not measured yet. */
async function newest(id: string, server: ServerOptions): Promise<SandboxMetrics | undefined> {
  return (await Sandbox.getMetrics(id, connectionOf(server)).catch(() => [])).at(-1);
}

function usage(measured: SandboxMetrics | undefined) {
  if (measured === undefined) return {};
  const of = (used: number, total: number) =>
    `${Math.ceil(used / MEBIBYTE)} of ${Math.ceil(total / MEBIBYTE)} MiB`;
  return {
    cpu: `${measured.cpuUsedPct.toFixed(1)} % of ${measured.cpuCount}`,
    memory: of(measured.memUsed, measured.memTotal),
    disk: of(measured.diskUsed, measured.diskTotal),
    measured: measured.timestamp,
  };
}
