import type { Sandbox } from "@coppice/core/backend";
import { OUTSIDE } from "./freebsd-host.js";

/** True when a program in a sandbox of a connected FreeBSD host reaches the stand-in for the internet. */
export async function reachesOut(sandbox: Sandbox): Promise<boolean> {
  const script = `timeout 2 bash -c '</dev/tcp/${OUTSIDE.addresses[0]}/${OUTSIDE.port}'`;
  const env = { PATH: "/usr/bin:/bin" };
  const started = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env, input: "none" });
  for await (const _ of started.output);
  return (await started.exit).code === 0;
}
