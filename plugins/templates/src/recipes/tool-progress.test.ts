import assert from "node:assert/strict";
import { it } from "node:test";
import { ToolProgress } from "./recipe-progress.js";

function after(...lines: readonly string[]): number | undefined {
  const progress = new ToolProgress();
  for (const line of lines) progress.push(line);
  return progress.percent;
}

it("apt tells how far it is by its packages, of each installation anew", () => {
  const begun = [
    "Get:1 http://deb.debian.org trixie InRelease",
    "0 upgraded, 2 newly installed, 0 to remove",
  ];
  assert.equal(after(...begun), undefined);
  const fetched = [...begun, "Get:1 http://deb.debian.org trixie/main amd64 curl", "Get:2 http://deb git"];
  assert.equal(after(...fetched), 33);
  const all = ["Unpacking curl (8) ...", "Unpacking git (2) ...", "Setting up curl (8) ..."];
  assert.equal(after(...fetched, ...all), 83);
  assert.equal(after(...fetched, ...all, "Setting up git ...", "Setting up more ..."), 100);
  assert.equal(after(...fetched, "0 upgraded, 100 newly installed", "Get:1 x"), 0);
});

it("other tools print per cent", () => {
  assert.equal(after("Downloading numpy (16.3 MB)"), undefined);
  assert.equal(after("   41.7% [=====>     ]"), 41);
  assert.equal(after("[ 12%] Building C object", "[100%] Built target"), 100);
  assert.equal(after("grew by 1234%"), undefined);
});
