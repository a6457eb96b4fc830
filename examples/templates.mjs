// Templates of one's own on those of the server, by the official, unmodified E2B SDK. Once the server has built its own
// `base`, with the variables of README.md:
//
//   node examples/templates.mjs
import { Sandbox, Template } from "@e2b/code-interpreter";

const bases = {
  // The image of E2B's own base, for which that of the server stands.
  "fromBaseImage()": Template().fromBaseImage(),
  'fromTemplate("base")': Template().fromTemplate("base"),
};
for (const [name, base] of Object.entries(bases)) {
  const { buildId } = await Template.build(base.runCmd("python3 --version > ~/version"), "on-base");
  console.log(`${name}: build ${buildId} is ready`);
  const sandbox = await Sandbox.create("on-base", { timeoutMs: 60_000 });
  try {
    console.log(`  ${(await sandbox.files.read("version")).trim()}`);
  } finally {
    await sandbox.kill();
  }
}
