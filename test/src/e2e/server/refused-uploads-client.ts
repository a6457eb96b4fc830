import { Sandbox } from "e2b";

// A user of the SDK, in a process of its own because it trusts the authority in NODE_EXTRA_CA_CERTS. Prints as JSON the
// error of each of its uploads.

const large = new Blob([new Uint8Array(64 * 2 ** 20)]);
const sandbox = await Sandbox.create();
const errors: string[] = [];
try {
  for (let round = 0; round < 4; round++)
    await sandbox.files.write("large.bin", large).then(
      () => errors.push("none"),
      (error: unknown) => errors.push(String(error)),
    );
} finally {
  await sandbox.kill();
}
process.stdout.write(JSON.stringify(errors));
