import { z } from "zod";

/** A whole number from 0 on in a query, as text. @param what completes "expected …". @param digits most of them. */
export function queryNumber(what = "a number", digits = 15) {
  return z
    .string()
    .regex(new RegExp(`^\\d{1,${digits}}$`), `expected ${what}`)
    .transform(Number);
}
