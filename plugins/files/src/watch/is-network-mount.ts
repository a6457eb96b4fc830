import { stat, statfs } from "node:fs/promises";

// f_type of statfs(2), in the order of <linux/magic.h>: CIFS, FUSE, NFS, SMB, SMB 2.
const NETWORK_TYPES: ReadonlySet<number> = new Set([0xff534d42, 0x65735546, 0x6969, 0x517b, 0xfe534d42]);

/**
 * True when a directory of this host is on NFS, SMB or FUSE, but not on the file system of `root`, the root of its
 * sandbox, which the sandbox alone changes. False on systems other than Linux: their file systems have other numbers.
 */
export async function isNetworkMount(directory: string, root: string): Promise<boolean> {
  if (process.platform !== "linux") return false;
  const { type } = await statfs(directory);
  // Where the field is signed, the types above 2^31 arrive negative.
  if (!NETWORK_TYPES.has(type >>> 0)) return false;
  const [there, above] = await Promise.all([stat(directory), stat(root)]);
  return there.dev !== above.dev;
}
