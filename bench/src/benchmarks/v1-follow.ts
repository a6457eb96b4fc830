import { Agent, request } from "node:http";
import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import { BenchedServer } from "../kit/benched-server.js";
import type { Benchmark } from "../kit/benchmark.js";
import { V1_SETTINGS, V1Client } from "../kit/v1-client.js";

const COMMANDS = 100;
const FOLLOWERS = 1_000;
/** Lines of each command, one after the other, and the time between two. */
const LINES = 25;
const PAUSE_S = 0.4;
const LINE = "x".repeat(79);
const SETTLE_MS = 4_000;
/** Node measures it by a timer of 50 ms, which it includes. */
const LAG = "nodejs_eventloop_lag_p99_seconds";

/** A thousand clients that follow a hundred commands: lost bytes, memory of a follower, delays of the event loop. */
export const v1Follow: Benchmark = async (_server, { backend }) => {
  const server = await BenchedServer.start(backend, {
    settings: { ...V1_SETTINGS, commands: { maxCommandsPerSandbox: 2 * COMMANDS } },
  });
  const sandbox = await server.createSandbox();
  const client = new V1Client(server, sandbox);
  // They write one after the other, not all at once.
  const scriptOf = (index: number): string =>
    `sleep ${6 + (index * PAUSE_S) / COMMANDS}; i=0; while [ $i -lt ${LINES} ]; do echo ${LINE}; sleep ${PAUSE_S}; i=$((i+1)); done`;
  const ids = await Promise.all(
    Array.from({ length: COMMANDS }, (_, index) => client.start(["/bin/sh", "-c", scriptOf(index)])),
  );
  const before = server.process.residentBytes();
  const agent = new Agent({ maxSockets: Infinity });
  const followers = Array.from({ length: FOLLOWERS }, (_, index) =>
    follow(
      `${server.url}/v1/sandboxes/${sandbox.id}/commands/${ids[index % COMMANDS]}/logs?follow=true`,
      agent,
    ),
  );
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  const followed = server.process.residentBytes();
  await server.process.longestStallMs();
  // Its percentiles are of the time since the last question.
  await server.metric(LAG);
  const lengths = await Promise.all(followers);
  const stallMs = await server.process.longestStallMs();
  const p99Ms = (await server.metric(LAG)) * 1000;
  const expected = LINES * (LINE.length + 1);
  const incomplete = lengths.filter((length) => length !== expected).length;
  const notes = [
    `v1-follow: ${FOLLOWERS} followers of ${COMMANDS} commands`,
    `  followers without exactly ${expected} bytes: ${incomplete} (${Math.min(...lengths)} to ${Math.max(...lengths)} bytes)`,
    `  server (RSS) for a follower: ${((followed - before) / FOLLOWERS / 1024).toFixed(0)} KiB`,
    `  event loop: p99 of its delays ${p99Ms.toFixed(1)} ms, longest turn ${stallMs.toFixed(1)} ms`,
  ];
  return {
    notes: [notes.join("\n")],
    comparisons: [],
    async close() {
      agent.destroy();
      await server[Symbol.asyncDispose]();
    },
  };
};

/** Follows a log to its end. @returns the bytes of output that came. */
function follow(url: string, agent: Agent): Promise<number> {
  return new Promise((resolve, reject) => {
    const asked = request(url, { agent, headers: { "x-api-key": API_KEY } }, (answer) => {
      let text = "";
      answer.setEncoding("utf8");
      answer.on("data", (chunk: string) => {
        text += chunk;
      });
      answer.on("end", () => resolve(text.split(LINE).length - 1));
      answer.on("error", reject);
    });
    asked.on("error", reject);
    asked.end();
  }).then((lines) => Number(lines) * (LINE.length + 1));
}
