import { closeSync, existsSync, openSync, readFileSync, readSync } from "node:fs";
import type { TarEntry } from "./tar-archive.js";

/** Debian's static programs: they need no libraries. */
const BUSYBOX = "/bin/busybox";
const BASH = "/bin/bash-static";

const APPLETS = (
  "awk basename cat chgrp chmod chown cmp cp cut date dd dirname du echo env expr false find grep head hostname httpd " +
  "id kill ln ls md5sum mkdir mknod mktemp mv nc printf ps pwd readlink rm rmdir sed seq sh sleep sort stat tail tar " +
  "tee test touch tr true uname wc wget whoami xargs"
).split(" ");

const PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n";
/** As Debian has it: a login forgets the PATH that it was given. */
const PROFILE =
  'PATH=/usr/local/bin:/usr/bin:/bin\n[ -n "$LATER_PATH" ] && PATH=$PATH:$LATER_PATH\nexport PATH\n';

/** Reason why `smallRoot` cannot be made here; false when it can. */
export const WITHOUT_SMALL_ROOT: string | false =
  isStatic(BUSYBOX) && isStatic(BASH) ? false : "it needs busybox-static and bash-static (Debian)";

/** Debian's other busybox has the same path, and needs a loader. */
function isStatic(path: string): boolean {
  if (!existsSync(path)) return false;
  const head = Buffer.alloc(4096);
  const file = openSync(path, "r");
  readSync(file, head);
  closeSync(file);
  return !head.includes("/ld-linux");
}

/** The lowest layer of an image with bash, the tools of busybox, root, and a skeleton for homes. */
export function smallRoot(): readonly TarEntry[] {
  const directories = [
    "bin",
    "etc",
    "etc/skel",
    "root",
    "usr",
    "usr/bin",
    "usr/local",
    "usr/local/bin",
    "var",
  ];
  return [
    ...directories.map((name): TarEntry => ({ name: `${name}/`, type: "5" })),
    { name: "tmp/", type: "5", mode: 0o1777 },
    { name: "etc/passwd", body: PASSWD },
    { name: "etc/group", body: "root:x:0:\nnobody:x:65534:\n" },
    { name: "etc/profile", body: PROFILE },
    { name: "etc/skel/.bashrc", body: "# of the skeleton\n" },
    { name: "bin/busybox", body: readFileSync(BUSYBOX), mode: 0o755 },
    { name: "bin/bash", body: readFileSync(BASH), mode: 0o755 },
    ...APPLETS.map((name): TarEntry => ({ name: `bin/${name}`, type: "2", link: "busybox" })),
  ];
}
