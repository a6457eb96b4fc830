import type { Sandbox } from "@coppice/core/backend";
import type { TarEntry } from "@coppice/core/testing";
import type { ConformanceContext } from "./conformance-context.js";

const PROGRAMS = ["sh", "cat", "id", "ls", "mkdir", "rm", "chmod", "chown", "ln", "sleep"];
const LIBRARY = /(\/\S+) \(0x[0-9a-f]+\)/g;
/** Not listed by ldd(1) there. */
const FREEBSD_LOADER = "/libexec/ld-elf.so.1";
const OWN_UID = 1234;

const PASSWD = `root:x:0:0:root:/root:/bin/sh\nuser:x:${OWN_UID}:${OWN_UID}::/home/user:/bin/sh\n`;
const GROUP = `root:x:0:\nuser:x:${OWN_UID}:\n`;

/**
 * Lowest layer of an image in which a shell runs, made of files of a sandbox: it has an account `user` with an id that
 * no template has.
 */
export async function tinyRoot(context: ConformanceContext): Promise<readonly TarEntry[]> {
  const script = `for each; do path=$(command -v "$each") && echo "$each=$path" && ldd "$path"; done
[ ! -e ${FREEBSD_LOADER} ] || echo "${FREEBSD_LOADER} (0x0)"`;
  const output = await context.succeed(script, { args: PROGRAMS });
  const programs = [...output.matchAll(/^(\w+)=(\/.*)$/gm)].map(([, name = "", path = ""]) => ({
    name,
    path,
  }));
  const libraries = new Set([...output.matchAll(LIBRARY)].map(([, path = ""]) => path));
  const files = [
    ...programs.map(({ name, path }) => ({ name: `bin/${name}`, path })),
    ...[...libraries].map((path) => ({ name: path.slice(1), path })),
  ];
  const entries = files.map(async ({ name, path }): Promise<TarEntry> => {
    return { name, body: await readWhole(context.sandbox, path), mode: 0o755 };
  });
  return [
    { name: "./", type: "5" },
    { name: "etc/", type: "5" },
    { name: "etc/passwd", body: PASSWD },
    { name: "etc/group", body: GROUP },
    { name: "root/", type: "5", mode: 0o700 },
    { name: "tmp/", type: "5", mode: 0o1777 },
    { name: "home/user/", type: "5", uid: OWN_UID, gid: OWN_UID },
    ...(await Promise.all(entries)),
  ];
}

async function readWhole(sandbox: Sandbox, path: string): Promise<Buffer> {
  await using file = await sandbox.files.read(path);
  return Buffer.concat(await Array.fromAsync(file.content()));
}
