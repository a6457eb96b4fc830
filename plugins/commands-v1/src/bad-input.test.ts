import assert from "node:assert/strict";
import { it } from "node:test";
import { SeededRandom, startTestServer } from "@coppice/core/testing";
import commands, { Commands } from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import commandsV1 from "./index.js";

const ROUNDS = 2_000;

/** Fields of all bodies, and values that none of them takes, or some do. */
const FIELDS = [
  "argv",
  "env",
  "cwd",
  "image",
  "name",
  "tier",
  "cpu",
  "memory",
  "disk_gb",
  "ttl",
  "paths",
  "src_dir",
] as const;
const MORE_FIELDS = [
  "auto_stop_minutes",
  "auto_delete_hours",
  "deadline",
  "timeout_seconds",
  "detach",
  "__proto__",
] as const;
const VALUES = [
  "null",
  "true",
  "-1",
  "0",
  "1e999",
  '""',
  '"\\u0000"',
  '"-x"',
  '"../.."',
  '"9999999999999999h"',
  "[]",
  "{}",
  '["a\\u0000"]',
  '[""]',
  "[1]",
  '{"a":1}',
  '{"":""}',
  '"2026-13-45T99:99:99Z"',
  `"${"x".repeat(5_000)}"`,
] as const;
const QUERIES = [
  "",
  "?cursor=-1",
  "?cursor=1e9",
  "?follow=maybe",
  "?limit=",
  "?detach=1",
  "?name=%00",
  "?encoding=x",
  "?a=b&a=c",
] as const;
const NAMES = [
  "none",
  "UPPER",
  "%00",
  "%2e%2e",
  "a%2Fb",
  "-",
  "0",
  "01900000-0000-7000-8000-000000000000",
  "%F0%9F%98%80",
] as const;

it(
  "any input to a route of /v1 is answered below 500, and starts nothing",
  { timeout: 120_000 },
  async () => {
    await using server = await startTestServer({
      plugins: [
        [commands, {}],
        [commandsV1, {}],
        [localProcess, {}],
      ],
    });
    const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 300_000, secure: false });
    const random = new SeededRandom(Number(process.env["COPPICE_FUZZ_SEED"] ?? Date.now() % 1_000_000));
    const routes = server.routes.filter(({ path }) => path.startsWith("/v1/"));
    assert.ok(routes.length >= 20, `${routes.length} routes`);
    const body = (): string => {
      if (random.below(8) === 0) return random.of(["", "{", "[", "null", '"x"', "\u0000", "{}"]);
      const fields = Array.from({ length: random.below(4) }, () => {
        return `"${random.of(random.below(2) === 0 ? FIELDS : MORE_FIELDS)}":${random.of(VALUES)}`;
      });
      return `{${fields.join(",")}}`;
    };
    for (let round = 0; round < ROUNDS; round += 1) {
      const { method, path } = routes[random.below(routes.length)] ?? {
        method: "GET",
        path: "/v1/sandboxes",
      };
      // The sandbox is kept: most requests are to find it.
      const isLast = method === "DELETE" || /\/(stop|start)$/.test(path);
      const url = path
        .replace("/one-shot-runs/:id", () => `/one-shot-runs/${random.of(NAMES)}`)
        .replace(":id", () => (isLast || random.below(4) === 0 ? random.of(NAMES) : record.id))
        .replace(/:\w+/g, () => random.of(NAMES));
      const sent = body();
      const response = await fetch(server.url + url + random.of(QUERIES), {
        method,
        headers: {
          "content-type": random.of([
            "application/json",
            "multipart/form-data; boundary=x",
            "",
            "text/plain",
          ]),
        },
        ...(method !== "GET" && method !== "HEAD" && { body: sent }),
      });
      const told = `COPPICE_FUZZ_SEED=${random.seed} ${method} ${url} ${sent.slice(0, 300)}: ${response.status}`;
      assert.ok(response.status < 500, told);
      await response.arrayBuffer();
    }
    assert.deepEqual(
      server.sandboxes.list().map(({ record: { id } }) => id),
      [record.id],
    );
    assert.deepEqual(server.resolve(Commands).list(server.sandboxes.get(record.id)), []);
  },
);
