import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { startTestServer } from "@coppice/core/testing";
import { plugin } from "./plugin.js";

it("a server without the packages of OpenTelemetry does not start, and says how they are installed", async () => {
  const modules = await mkdtemp(join(tmpdir(), "coppice-test-"));
  try {
    await assert.rejects(
      startTestServer({ plugins: [[plugin, { modules }]] }),
      new RegExp(
        `npm install --prefix ${modules} @opentelemetry/api .*@opentelemetry/exporter-trace-otlp-http`,
      ),
    );
  } finally {
    await rm(modules, { recursive: true });
  }
});
