import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { it } from "node:test";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

const RECIPE = {
  steps: [
    ["USER", "root"],
    [
      "RUN",
      "mkdir -p /app/a /app/b; date > /tmp/today; rm /tmp/today; ln -s a /app/link; echo x | tee /app/a/x > /app/y",
    ],
    ["RUN", "rm -r /app/b; echo more >> /app/y; chown -R user: /app"],
    ["USER", "user"],
    ["RUN", "echo mine > ~/mine"],
  ],
  startCommand: "httpd -f -p 8080",
  readyCommand: "true",
} as const;

/** Digest of an archive of the files that a builder of its own makes of the recipe. */
async function digestOf(isReproducible: boolean): Promise<string> {
  await using host = await BuildHost.open();
  const { result } = await host.build({ ...RECIPE, isReproducible });
  const { images } = host.backend;
  assert.ok(images?.pack);
  const hash = createHash("sha256");
  for await (const chunk of images.pack({ image: result.image }, new AbortController().signal))
    hash.update(chunk);
  return hash.digest("hex");
}

it(
  "two builds of a recipe make the same archive, byte by byte",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async () => {
    const digests = [await digestOf(true), await digestOf(true)];
    assert.equal(digests[0], digests[1]);
    // The builds of clients keep the times of their files.
    assert.notEqual(await digestOf(false), digests[0]);
  },
);
