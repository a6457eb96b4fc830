import type { Launcher } from "../launcher/launcher.js";
import type { UserNamespace } from "../launcher/user-namespace.js";

/** Owners of a template's files as its sandboxes see them. The default is root. */
export interface TemplateOwners {
  /** Part of the template's digest: templates with different owners differ. */
  readonly description: string;
  /** False where the server's user owns every file and is called root as well. */
  readonly hasAccounts: boolean;
  /** True when setuid programs of the host have no effect inside. */
  readonly needsOwnSudo: boolean;
  /** Gives a file or directory, without its contents, to the user and group with this id. */
  giveToUser(path: string, id: number): Promise<void>;
}

/** @param users of a server that is not root. */
export function templateOwners(launcher: Launcher, users: UserNamespace | undefined): TemplateOwners {
  const hasAccounts = users?.hasAccounts ?? true;
  return {
    description: users === undefined ? "root" : users.words.join(" "),
    hasAccounts,
    needsOwnSudo: users !== undefined && hasAccounts,
    async giveToUser(path, id) {
      if (!hasAccounts) return;
      // Run by the launcher, which is root of the user namespace.
      const { code, output } = await launcher.run(["chown", "-h", `${id}:${id}`, path]);
      if (code !== 0) throw new Error(output.trim());
    },
  };
}
