import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { createReadStream, createWriteStream } from "node:fs";
import { mkdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { openTestRegistry, smallRoot, tarArchive, writeImageLayout } from "@coppice/core/testing";
import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import { startFullServer } from "@coppice/test/harness/server/start-full-server.js";
import type { Benchmark, Run } from "../kit/benchmark.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";
import { WatchedProcess } from "../kit/watched-process.js";

const MEBIBYTE = 2 ** 20;
const FILE_BYTES = MEBIBYTE;
const SMALL_FILE_BYTES = 1024;
const [FEW, MANY] = [100, 10_000];
const POLL_MS = 20;

interface Step {
  readonly type: string;
  readonly args: readonly string[];
  readonly filesHash?: string;
  readonly force?: boolean;
}

interface Status {
  readonly status: string;
  readonly reason?: { readonly message: string };
  readonly logEntries: readonly { readonly timestamp: string; readonly message: string }[];
}

/** Builds of templates on linux-namespaces, whatever the backend of the server. */
export const builds: Benchmark = async ({ scratch }, { largeBytes }) => {
  const layout = join(scratch, "small");
  await writeImageLayout(layout, { layers: [smallRoot()] });
  const registry = await openTestRegistry();
  registry.add("library/small:1", layout);
  const registries = { mirrors: { "docker.io": registry.address }, insecure: [registry.address] };
  const rate = { requests: 1_000_000, per: "1s" };
  const limits = { maxStorage: "1TiB", maxUpload: "1TiB", maxUploads: "1TiB" };
  const server = await startFullServer({
    backend: "linux-namespaces",
    settings: {
      access: { rateLimits: { perAddress: rate, perKey: rate } },
      templates: { registries, ...limits },
    },
  });

  const ask = async (method: string, path: string, body?: unknown): Promise<unknown> => {
    const answer = await fetch(`${server.url}${path}`, {
      method,
      headers: { "x-api-key": API_KEY, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text === "" ? undefined : JSON.parse(text);
  };
  /** Builds to the end. @returns the template's id, and the log */
  const build = async (steps: readonly Step[]): Promise<Status & { readonly templateID: string }> => {
    const asked = await ask("POST", "/v3/templates", { name: "bench", cpuCount: 2, memoryMB: 1024 });
    const { templateID, buildID } = asked as { readonly templateID: string; readonly buildID: string };
    await ask("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: "small:1", steps });
    for (;;) {
      const status = (await ask("GET", `/templates/${templateID}/builds/${buildID}/status`)) as Status;
      if (status.status === "ready") return { ...status, templateID };
      if (status.status === "error") throw new Error(status.reason?.message);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  };
  /** Time from the line of the log that a step begins with to that of the end. */
  const stepMs = ({ logEntries }: Status, begins: string): number => {
    const at = (start: string): number =>
      Date.parse(logEntries.find(({ message }) => message.startsWith(start))?.timestamp ?? "");
    return at("[finalize]") - at(begins);
  };

  const { templateID } = await build([{ type: "RUN", args: ["true"] }]);
  const { record, runtime } = await server.sandboxes.create({
    template: templateID,
    timeoutMs: undefined,
    secure: false,
  });
  const command = async (): Promise<void> => {
    const started = await runtime.spawn({
      path: "/bin/bash",
      args: ["-l", "-c", "true"],
      env: {},
      input: "none",
    });
    for await (const _ of started.output);
    await started.exit;
  };
  const step = async (): Promise<Run> => {
    const line = `true ${randomBytes(4).toString("hex")}`;
    return { tookMs: stepMs(await build([{ type: "RUN", args: [line] }]), "[builder 1/1] RUN") };
  };
  const cachedSteps = Array.from({ length: 5 }, (_, at) => ({ type: "RUN", args: [`true ${at}`] }));
  await build(cachedSteps);

  const watched = new WatchedProcess(process.pid);
  /** Uploads an archive of files. @returns the build that copies them, and the floor that unpacks them here */
  const copyOf = async (count: number, fileBytes: number) => {
    const archive = join(scratch, `${count}-files.tar`);
    const { hash, bytes } = await writeArchive(archive, { count, fileBytes });
    const link = (await ask("GET", `/templates/${templateID}/files/${hash}`)) as { readonly url: string };
    const uploaded = await fetch(link.url, {
      method: "PUT",
      headers: { "content-length": String(bytes) },
      body: Readable.toWeb(createReadStream(archive)) as ReadableStream,
      duplex: "half",
    });
    if (!uploaded.ok) throw new Error(`upload: ${uploaded.status} ${await uploaded.text()}`);
    const copy = async (): Promise<Run> => {
      const steps = [{ type: "COPY", args: ["files", "files"], filesHash: hash, force: true }];
      return { tookMs: stepMs(await build(steps), "[builder 1/1] COPY") };
    };
    const unpack = async (): Promise<Run> => {
      const directory = join(scratch, `unpacked-${randomBytes(4).toString("hex")}`);
      await mkdir(directory);
      await spawnToEnd("tar", ["-x", "-f", archive, "-C", directory]);
      return { undo: () => rm(directory, { recursive: true }) };
    };
    return { bytes, copy, unpack };
  };
  const large = await copyOf(Math.ceil(largeBytes / FILE_BYTES), FILE_BYTES);
  const few = await copyOf(FEW, SMALL_FILE_BYTES);
  const many = await copyOf(MANY, SMALL_FILE_BYTES);
  return {
    comparisons: [
      {
        title: "builds: a step",
        floor: { label: "bash -l -c true in a sandbox", once: command },
        contenders: [
          { label: "RUN true", once: step },
          { label: "five cached steps, to ready", once: async () => void (await build(cachedSteps)) },
        ],
      },
      {
        title: `builds: COPY of ${Math.round(large.bytes / MEBIBYTE)} MiB`,
        floor: { label: "tar x on this host", once: large.unpack, bytes: large.bytes },
        contenders: [{ label: "COPY", once: large.copy, bytes: large.bytes }],
      },
      {
        title: `builds: COPY of many files of ${SMALL_FILE_BYTES} bytes`,
        floor: { label: `tar x of ${MANY} files on this host`, once: many.unpack },
        contenders: [
          { label: `COPY of ${FEW} files`, once: few.copy, watched },
          { label: `COPY of ${MANY} files`, once: many.copy, watched },
        ],
      },
    ],
    async close() {
      await server.sandboxes.kill(record.id);
      await server.stop();
      await registry[Symbol.asyncDispose]();
    },
  };
};

/** Writes a tar file. */
async function writeArchive(
  path: string,
  { count, fileBytes }: { readonly count: number; readonly fileBytes: number },
): Promise<{ readonly hash: string; readonly bytes: number }> {
  const hash = createHash("sha256");
  const file = createWriteStream(path);
  for (let at = 0; at < count; at += 1) {
    const whole = tarArchive([{ name: `files/${at}`, body: randomBytes(fileBytes) }]);
    // All but the last end without the blocks that end an archive.
    const part = at === count - 1 ? whole : whole.subarray(0, -1024);
    hash.update(part);
    if (!file.write(part)) await once(file, "drain");
  }
  file.end();
  await once(file, "close");
  return { hash: hash.digest("hex"), bytes: (await stat(path)).size };
}
