import { Sandbox } from "@e2b/code-interpreter";

// A client of the SDK in a separate process, which gets E2B_DOMAIN and E2B_API_KEY, and trusts the authority in
// NODE_EXTRA_CA_CERTS. Prints its results as JSON.

const sandbox = await Sandbox.create({ envs: { GREETING: "hello" } });
try {
  const command = await sandbox.commands.run("echo $GREETING");
  await sandbox.files.write("note.txt", "a note");
  const download = await fetch(await sandbox.downloadUrl("note.txt"));
  const execution = await sandbox.runCode("6 * 7");
  const page = await sandbox.commands.run("exec python3 -u -m http.server 0 --bind 127.0.0.1", {
    background: true,
    envs: { PATH: process.env["PATH"] ?? "" },
  });
  page.wait().catch(() => undefined);
  let port: string | undefined;
  while (port === undefined) {
    await new Promise((resolve) => setTimeout(resolve, 25));
    port = /port (\d+)/.exec(page.stdout)?.[1];
    if (page.exitCode !== undefined) throw new Error(`the page's server ended: ${page.stderr}`);
  }
  const listed = await fetch(`https://${sandbox.getHost(Number(port))}/`);
  const connected = await Sandbox.connect(sandbox.sandboxId);
  process.stdout.write(
    JSON.stringify({
      stdout: command.stdout,
      read: await connected.files.read("note.txt"),
      download: await download.text(),
      result: execution.text,
      page: listed.status,
      isListed: (await listed.text()).includes("note.txt"),
      isRunning: await sandbox.isRunning(),
      isKilled: await sandbox.kill(),
      isRunningAfter: await sandbox.isRunning(),
    }),
  );
} catch (error) {
  await sandbox.kill();
  throw error;
}
