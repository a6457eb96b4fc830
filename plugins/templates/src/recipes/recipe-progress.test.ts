import assert from "node:assert/strict";
import { it } from "node:test";
import type { LogLevel } from "../model/build-record.js";
import type { Transfer } from "../model/builder.js";
import { RecipeProgress } from "./recipe-progress.js";

function watched(steps: number) {
  const told: string[] = [];
  let transfer: Transfer | undefined;
  const info = (_fields: unknown, line?: string): void => void told.push(line ?? "");
  const ignore = (): void => undefined;
  const log = { info, debug: ignore, warn: info, error: info } as never;
  const progress = new RecipeProgress({ log, template: "base", steps, transfer: () => transfer });
  return {
    say: (message: string, step: string, level: LogLevel = "info") => progress.add({ level, message, step }),
    pull: (done: number, total: number) => (transfer = { phase: "pulling", done, total }),
    tell: () => {
      progress.tell();
      return told.splice(0);
    },
    fail: () => {
      told.length = 0;
      progress.tellFailure();
      return told;
    },
  };
}

it("the log of a server tells how far a long step of a recipe is, once for each change", () => {
  const { say, tell } = watched(1);
  say("Installing the packages", "base");
  assert.deepEqual(tell(), ["template 'base', step 1 of 3: Installing the packages"]);
  say("0 upgraded, 4 newly installed, 0 to remove", "base", "debug");
  for (const name of ["a", "b", "c", "d", "e"]) say(`Get:1 http://deb.debian.org ${name}`, "base", "debug");
  assert.deepEqual(tell(), ["template 'base', step 1 of 3, 41 %: Get:1 http://deb.debian.org e"]);
  assert.deepEqual(tell(), []);
  say(`[builder 1/1] RUN make [${"0".repeat(64)}]`, "1");
  assert.deepEqual(tell(), ["template 'base', step 2 of 3: RUN make"]);
  say("[builder 1/1] [stdout]: [ 12%] Building", "1");
  assert.deepEqual(tell(), ["template 'base', step 2 of 3, 12 %: [ 12%] Building"]);
});

it("a pull is told in per cent", () => {
  const { say, pull, tell } = watched(5);
  say("Pulling sha256:0123 (1.0 MiB)", "base");
  tell();
  pull(41, 100);
  assert.deepEqual(tell(), ["template 'base', step 1 of 7, 41 %: pulling"]);
  pull(100, 100);
  assert.deepEqual(tell(), []);
});

it("a failed step is told with the last lines that it printed itself", () => {
  const { say, fail } = watched(1);
  say("Setting up bash", "base", "debug");
  say(`[builder 1/1] RUN make [${"0".repeat(64)}]`, "1");
  for (let line = 1; line <= 30; line++) say(`[builder 1/1] [stderr]: line ${line}`, "1");
  say("Build failed: failed to run command 'make': exit status 2", "1", "error");
  assert.deepEqual(
    fail(),
    Array.from({ length: 20 }, (_, index) => `  line ${index + 11}`),
  );
});
