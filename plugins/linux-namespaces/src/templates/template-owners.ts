import type { Launcher } from "../launcher/launcher.js";
import type { UserNamespace } from "../launcher/user-namespace.js";

/** Owners of a template's files, as its sandboxes see them. Files belong to root unless they were given to another owner. */
export interface TemplateOwners {
  /** Differs where templates have to. */
  readonly description: string;
  /** False where every file is the one user's, who is called root as well. */
  readonly hasAccounts: boolean;
  /** True when setuid programs of the host have no effect inside. */
  readonly needsOwnSudo: boolean;
  /** Makes a file or directory, not what is in it, that of the user and group with this id. */
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
      // By the launcher, which is root wherever there are users.
      const { code, output } = await launcher.run(["chown", "-h", `${id}:${id}`, path]);
      if (code !== 0) throw new Error(output.trim());
    },
  };
}
