import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { createBody, toCreateSandbox } from "./create-body.js";

const schema = createBody({
  variableLimitBytes: 64,
  metadataLimitBytes: 32,
  networkRuleLimit: 3,
  volumeMountLimit: 2,
});
const V2 = { timeoutMs: 300_000, secure: true };

describe("the body of a create request", () => {
  it("means what the SDKs send when their users set nothing", () => {
    const fromJavaScript = toCreateSandbox(schema.parse({ templateID: "base" }), V2);
    const fromPython = toCreateSandbox(
      schema.parse({
        templateID: "base",
        metadata: {},
        timeout: 300,
        envVars: {},
        secure: true,
        allow_internet_access: true,
      }),
      { timeoutMs: 15_000 },
    );
    const expected = {
      template: "base",
      timeoutMs: 300_000,
      onTimeout: "kill",
      keepsMemory: true,
      autoResume: false,
      metadata: {},
      environment: {},
      secure: true,
      allowInternetAccess: true,
      egress: undefined,
      allowPublicTraffic: true,
      maskRequestHost: undefined,
      limits: {},
      mounts: [],
    };
    assert.deepEqual(fromJavaScript, expected);
    assert.deepEqual(fromPython, expected);
  });

  it("requires a token on the older route unless the body or the request's client says otherwise", () => {
    const defaults = { timeoutMs: 15_000 };
    const open = { ...defaults, secureUnlessSaid: false };
    assert.equal(toCreateSandbox(schema.parse({ templateID: "base" }), defaults).secure, true);
    assert.equal(
      toCreateSandbox(schema.parse({ templateID: "base", secure: false }), defaults).secure,
      false,
    );
    assert.equal(toCreateSandbox(schema.parse({ templateID: "base" }), open).secure, false);
    assert.equal(toCreateSandbox(schema.parse({ templateID: "base", secure: true }), open).secure, true);
    assert.equal(toCreateSandbox(schema.parse({ templateID: "base", secure: false }), V2).secure, true);
  });

  it("names its time-out in any of the known ways, E2B's first", () => {
    const timeoutOf = (fields: object) =>
      toCreateSandbox(schema.parse({ templateID: "base", ...fields }), V2).timeoutMs;
    assert.equal(timeoutOf({ timeout: 7, timeoutMs: 1 }), 7000);
    assert.equal(timeoutOf({ timeoutSeconds: 7 }), 7000);
    assert.equal(timeoutOf({ timeout_seconds: 7 }), 7000);
    assert.equal(timeoutOf({ timeoutMs: 7 }), 7);
    assert.equal(timeoutOf({ timeout_ms: 7 }), 7);
    assert.equal(timeoutOf({ timeout: 0 }), 0);
    assert.equal(timeoutOf({ timeout: null }), 300_000);
  });

  it("names the action at its end in any of the known ways, and whether memory is kept", () => {
    const lifecycleOf = (fields: object): string => {
      const wanted = toCreateSandbox(schema.parse({ templateID: "base", ...fields }), V2);
      return `${wanted.onTimeout} ${wanted.autoResume}${wanted.keepsMemory ? "" : " forgets"}`;
    };
    assert.equal(lifecycleOf({ autoPause: true }), "pause false");
    assert.equal(lifecycleOf({ autoPause: true, autoPauseMemory: true }), "pause false");
    assert.equal(lifecycleOf({ autoPause: true, autoResume: { enabled: true } }), "pause true");
    assert.equal(lifecycleOf({ lifecycle: { onTimeout: "pause", autoResume: true } }), "pause true");
    assert.equal(lifecycleOf({ lifecycle: { on_timeout: { action: "pause" } } }), "pause false");
    assert.equal(lifecycleOf({ on_timeout: "pause", auto_resume: { enabled: true } }), "pause true");
    assert.equal(lifecycleOf({ onTimeout: "kill", autoPause: true }), "kill false");
    assert.throws(() => lifecycleOf({ autoPauseMemory: false }), {
      message: "autoPauseMemory=false only applies when autoPause is true.",
    });
    assert.equal(lifecycleOf({ autoPause: true, autoPauseMemory: false }), "pause false forgets");
    const onTimeout = { action: "pause", keepMemory: false };
    assert.equal(lifecycleOf({ lifecycle: { onTimeout, autoResume: true } }), "pause true forgets");
  });

  it("names volumes, which can be written unless it says otherwise", () => {
    const volumeMounts = [
      { name: "v", path: "/v" },
      { name: "w", path: "/w", readOnly: true },
    ];
    assert.deepEqual(toCreateSandbox(schema.parse({ templateID: "base", volumeMounts }), V2).mounts, [
      { volume: "v", path: "/v", readOnly: false },
      { volume: "w", path: "/w", readOnly: true },
    ]);
  });

  it("names its readiness probe in any of the known ways", () => {
    const probeOf = (fields: object) =>
      toCreateSandbox(schema.parse({ templateID: "base", ...fields }), V2).readinessProbe;
    const times = { timeoutMs: undefined, intervalMs: undefined };
    assert.deepEqual(probeOf({ readinessProbe: { type: "tcp", port: 80, timeoutMs: 5, intervalMs: 250 } }), {
      type: "tcp",
      port: 80,
      timeoutMs: 5,
      intervalMs: 250,
    });
    const older = { type: "shell", command: ["a", ""], timeout_ms: 7, interval_ms: 8 };
    assert.deepEqual(probeOf({ readiness_probe: older }), {
      type: "shell",
      command: ["a", ""],
      timeoutMs: 7,
      intervalMs: 8,
    });
    const http = { type: "http", port: 8080 } as const;
    assert.deepEqual(probeOf({ readinessProbe: http }), { ...http, path: "/", ...times });
    assert.deepEqual(probeOf({ readinessProbe: { ...http, path: "/a?b" } }), {
      ...http,
      path: "/a?b",
      ...times,
    });
    assert.equal(probeOf({ readinessProbe: null }), undefined);
  });

  it("is accepted when it asks for nothing that this server lacks", () => {
    const harmless = [
      { somethingNew: { of: ["a", "later", "SDK"] } },
      { autoPause: false, autoResume: { enabled: false } },
      { lifecycle: { onTimeout: "kill", autoResume: false } },
      { network: { allowPublicTraffic: true, allowOut: [], rules: {} } },
      { network: { allowPublicTraffic: false, maskRequestHost: "localhost:${PORT}" } },
      { network: { allowOut: ["1.1.1.1"], denyOut: ["0.0.0.0/0"], httpsPorts: [], egressProxy: null } },
      { network: {}, mcp: null, volumeMounts: [], iam: { tokens: {} } },
      { allow_internet_access: false },
    ];
    for (const fields of harmless) {
      assert.equal(schema.safeParse({ templateID: "base", ...fields }).success, true, JSON.stringify(fields));
    }
  });

  it("is refused when ignoring a part of it would mislead its sender", () => {
    const refused: [object, string][] = [
      [{ lifecycle: { onTimeout: "pause", autoResume: 1 } }, "Invalid input"],
      [{ network: { denyOut: ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"] } }, "expected array to have <=3"],
      [{ network: { allowOut: "1.1.1.1" } }, "expected array"],
      [{ network: { allowOut: [7] } }, "expected string"],
      [{ network: { egressProxy: { address: "proxy:1" } } }, "network.egressProxy"],
      [{ network: { httpsPorts: [3000] } }, "network.httpsPorts"],
      [{ network: { rules: { "a.example": [{ transform: { headers: { A: "b" } } }] } } }, "network.rules"],
      [{ network: { somethingNew: true } }, "a network rule"],
      [{ network: { maskRequestHost: "a\r\nb: c" } }, "expected a host"],
      [{ network: { maskRequestHost: "" } }, "expected a host"],
      [{ mcp: { github: { token: "x" } } }, "MCP"],
      [{ iam: { tokens: { a: { audience: "b" } } } }, "identity tokens"],
      [{ volumeMounts: [{ name: "v" }] }, "expected string"],
      [{ volumeMounts: Array(3).fill({ name: "v", path: "/v" }) }, "expected array to have <=2"],
      [{ readinessProbe: { type: "udp", port: 1 } }, "Invalid"],
      [{ readinessProbe: { type: "tcp" } }, "expected number"],
      [{ readinessProbe: { type: "tcp", port: 65_536 } }, "<=65535"],
      [{ readinessProbe: { type: "http", port: 80, path: "up" } }, "begins with /"],
      [{ readinessProbe: { type: "http", port: 80, path: "/a\r\nHost: b" } }, "begins with /"],
      [{ readinessProbe: { type: "shell" } }, "Invalid input"],
      [{ readinessProbe: { type: "shell", command: [] } }, "expected array to have >=1"],
      [{ readiness_probe: { type: "tcp", port: 80, timeout_ms: 0 } }, ">0"],
      [{ readinessProbe: { type: "tcp", port: 80, intervalMs: 0.5 } }, "expected int"],
      [{ memoryMB: 64 }, "at least 128"],
      [{ memory_mb: 512.5 }, "expected int"],
      [{ cpuCount: "2" }, "expected number"],
      [{ cpu_count: -1 }, ">=0"],
      [{ diskSizeMB: 2 ** 31 }, "<=2147483647"],
    ];
    for (const [fields, reason] of refused) {
      const { error } = schema.safeParse({ templateID: "base", ...fields });
      assert.ok(error?.issues[0]?.message.includes(reason), `${JSON.stringify(fields)}: ${error?.message}`);
    }
  });

  it("is refused with more metadata than each of its events can carry", () => {
    const sizes = [
      { a: "x".repeat(31) },
      { é: "x".repeat(30) },
      Object.fromEntries(Array.from("abcdefgh", (name) => [name, "xxx"])),
    ];
    for (const metadata of sizes) {
      const wider = Object.fromEntries(Object.entries(metadata).map(([name, value]) => [name, `${value}y`]));
      assert.equal(schema.safeParse({ templateID: "base", metadata }).success, true);
      const { error } = schema.safeParse({ templateID: "base", metadata: wider });
      assert.equal(error?.issues[0]?.message, "the metadata of a sandbox have 32 bytes at most");
    }
  });

  it("is refused with variables that no program can be given", () => {
    const refused = [
      { "": "x" },
      { "A=B": "x" },
      { "A\0": "x" },
      { A: "x\0y" },
      { A: "x".repeat(62) },
      { A: 1 },
    ];
    for (const envVars of refused) {
      assert.equal(schema.safeParse({ templateID: "base", envVars }).success, false, JSON.stringify(envVars));
    }
    assert.equal(
      schema.safeParse({ templateID: "base", envVars: { A: "x".repeat(61), B: "" } }).success,
      true,
    );
  });
});
