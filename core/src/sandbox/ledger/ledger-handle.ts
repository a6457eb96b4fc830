import type { Ledger } from "./ledger.js";

/** A ledger that is chosen when it is first used: a plugin may bring one after the domain is wired. */
export function ledgerHandle(choose: () => Ledger): Ledger {
  let chosen: Ledger | undefined;
  return new Proxy({} as Ledger, {
    get(_, name) {
      chosen ??= choose();
      const member: unknown = Reflect.get(chosen, name);
      return typeof member === "function" ? member.bind(chosen) : member;
    },
  });
}
