import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

/** Runs a program to its end. */
export const run = promisify(execFile);
/** The program of all benchmarks. */
export const PROGRAM = fileURLToPath(new URL("../run.js", import.meta.url));
/** Options with which a benchmark is short. */
export const SMALL = ["--seconds", "0.05", "--mib", "2", "--sandboxes", "3"];
const ROW = /^(.+?) {2,}(\d+)((?: +[\d.]+){3,9}) +([\d.]+)x$/;

/** Declares a test of what each of these benchmarks prints: tables of a floor and its contenders. */
export function testTables(names: readonly string[]): void {
  for (const name of names) {
    it(`of ${name} print a floor of the same run, and how far from it each contender is`, async () => {
      const { stdout } = await run(process.execPath, [PROGRAM, name, ...SMALL]);
      const tables = stdout.trim().split("\n\n");
      for (const table of tables.filter((text) => !text.startsWith("beside "))) {
        const [title = "", headings = "", floor = "", ...contenders] = table.split("\n");
        assert.ok(title.startsWith(`${name}: `), table);
        assert.match(
          headings.trim(),
          /^runs +p50 (ms|MiB) +p95 \1 +p99 \1( +per s +MiB\/s +CPU ms +main ms +stall ms +peak MiB)? +p50 \/ (floor|whole)$/,
        );
        assert.match(floor, /^(floor|whole): .* 1\.00x$/);
        assert.ok(contenders.length > 0, table);
        for (const row of [floor, ...contenders]) {
          const [, , runs, numbers = ""] = ROW.exec(row) ?? assert.fail(`no row: ${row}`);
          assert.ok(Number(runs) > 0, row);
          const [p50 = 0, p95 = 0, p99 = 0] = numbers.trim().split(/ +/).map(Number);
          assert.ok(p50 > 0 && p50 <= p95 && p95 <= p99, row);
        }
      }
    });
  }
}
