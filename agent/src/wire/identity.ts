import type { PayloadWriter } from "./frames.js";

/** An acting account or owner, by numbers. */
export interface Identity {
  readonly uid: number;
  readonly gid: number;
  readonly groups?: readonly number[] | undefined;
}

/** @param identity a name of the sandbox's passwd, numbers, or undefined for the agent's own account. */
export function writeIdentity(payload: PayloadWriter, identity: string | Identity | undefined): void {
  if (identity === undefined) {
    payload.u8(0);
  } else if (typeof identity === "string") {
    payload.u8(1).text(identity);
  } else {
    const { uid, gid, groups = [] } = identity;
    payload.u8(2).u32(uid).u32(gid).u16(groups.length);
    for (const group of groups) payload.u32(group);
  }
}
