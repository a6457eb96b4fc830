import { access, constants } from "node:fs/promises";

/** True when this process may access a path of the host in this way; by default, when the path exists. */
export async function canAccess(path: string, mode = constants.F_OK): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}
