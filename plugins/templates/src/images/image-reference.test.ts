import assert from "node:assert/strict";
import { it } from "node:test";
import { parseImageReference } from "./image-reference.js";

const READ: readonly (readonly [text: string, registry: string, repository: string, version: string])[] = [
  ["debian", "docker.io", "library/debian", "latest"],
  ["debian:12", "docker.io", "library/debian", "12"],
  ["oven/bun:latest", "docker.io", "oven/bun", "latest"],
  ["docker.io/debian:12-slim", "docker.io", "library/debian", "12-slim"],
  ["index.docker.io/library/debian", "docker.io", "library/debian", "latest"],
  ["ghcr.io/a/b/c__d-e.f:v1_2", "ghcr.io", "a/b/c__d-e.f", "v1_2"],
  ["LOCALHOST/a", "localhost", "a", "latest"],
  ["127.0.0.1:5000/a:5000", "127.0.0.1:5000", "a", "5000"],
  ["[::1]:5000/a", "[::1]:5000", "a", "latest"],
  [`a:b@sha256:${"0".repeat(64)}`, "docker.io", "library/a", `sha256:${"0".repeat(64)}`],
];

it("a reference is read as Docker reads it", () => {
  for (const [text, ...parts] of READ) {
    const { registry, repository, version } = parseImageReference(text);
    assert.deepEqual([registry, repository, version], parts, text);
  }
});

const REFUSED: readonly string[] = [
  "",
  " debian",
  "Debian",
  "debian:",
  "debian:a:b",
  "debian:-x",
  `debian:${"x".repeat(129)}`,
  "debian@sha256:12",
  `debian@sha256:${"0".repeat(64)}@sha256:${"0".repeat(64)}`,
  "a//b",
  "/a",
  "a/",
  "../etc",
  "ghcr.io/../etc",
  "-o/x",
  "--authfile=/etc/passwd",
  "ghcr.io:99999/a",
  "999.1.1.1/a",
  "user:secret@ghcr.io/a",
  "https://ghcr.io/a",
  "ghcr.io:port/a",
  "a b.io/c",
  "ghcr.io/a\n",
  "ghcr.io/a\0",
  "a".repeat(100_000),
  "a/".repeat(50_000),
];

it("an invalid reference is refused with the reason", () => {
  for (const text of REFUSED) {
    assert.throws(
      () => parseImageReference(text),
      (error: Error) =>
        error.name === "BuildFailure" &&
        /^invalid image reference '[^]{0,260}': ./.test(error.message) &&
        Reflect.get(error, "step") === "base",
      JSON.stringify(text.slice(0, 80)),
    );
  }
});
