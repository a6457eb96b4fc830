import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { ResourceRules } from "./resource-rules.js";
import {
  openRecordingHost,
  type RecordingHost,
  reasonWithoutRecordingHost,
} from "../testing/recording-host.js";

const limits = { cpuCount: 1.5, memoryMiB: 512, diskMiB: 1024, processes: 64 };

describe("the rules of rctl(8)", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  let recording: RecordingHost;
  let rules: ResourceRules;

  before(async () => {
    recording = await openRecordingHost({
      limits: { openFiles: 1000, memoryReservation: 1.5, threads: 300, terminals: 7 },
    });
    rules = new ResourceRules(recording.host, recording.settings.limits);
  });
  after(() => recording[Symbol.asyncDispose]());

  it("are set by one command, and removed by one", async () => {
    await rules.set("e2b-abc", limits);
    await rules.remove("e2b-abc");
    assert.deepEqual(
      (await recording.calls()).map(({ program, args }) => [program, ...args]),
      [
        [
          "rctl",
          "-a",
          "jail:e2b-abc:memoryuse:deny=512M",
          "jail:e2b-abc:swapuse:deny=768M",
          "jail:e2b-abc:maxproc:deny=64",
          "jail:e2b-abc:nthr:deny=300",
          "jail:e2b-abc:openfiles:deny=1000",
          "jail:e2b-abc:pseudoterminals:deny=7",
          "jail:e2b-abc:pcpu:deny=150",
        ],
        ["rctl", "-r", "jail:e2b-abc"],
      ],
    );
  });

  it("report the usage of jails by one command, and none rather than that of another jail", async () => {
    const block = (memory: number, percent: number) =>
      `cputime=7\ndatasize=1\nmemoryuse=${memory}\nmaxproc=3\npcpu=${percent}\nwriteiops=0\n`;
    await recording.answer("rctl", block(1_000, 150) + block(2_000, 0));
    assert.deepEqual(
      [...(await rules.usage(["e2b-one", "e2b-two"]))],
      [
        ["e2b-one", { cpuSeconds: 7, cpuPercent: 150, memoryBytes: 1_000 }],
        ["e2b-two", { cpuSeconds: 7, cpuPercent: 0, memoryBytes: 2_000 }],
      ],
    );
    const [call] = await recording.calls();
    assert.deepEqual(call?.args, ["-u", "jail:e2b-one", "jail:e2b-two"]);
    await assert.rejects(rules.usage(["e2b-one", "e2b-two", "e2b-three"]), { name: "HostCommandError" });
    assert.deepEqual([...(await rules.usage([]))], []);
  });
});
