import { z } from "zod";

/** Bytes of a mebibyte. */
export const MEBIBYTE: number = 2 ** 20;

const DURATION_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;
const SIZE_BYTES = { B: 1, KiB: 2 ** 10, MiB: MEBIBYTE, GiB: 2 ** 30, TiB: 2 ** 40 } as const;

/** A quantity of the configuration; with a preset, that is its value when it is absent. */
interface Quantity {
  (): ReturnType<typeof quantity>;
  (preset: string): z.ZodPrefault<ReturnType<typeof quantity>>;
}

/** A duration in the configuration (`250ms`, `30s`, `5m`, `24h`, `7d`), parsed to milliseconds. */
export const duration = quantities(DURATION_MS, "a length of time such as 250ms, 30s, 5m or 24h");

/** An amount of data in the configuration (`64KiB`, `10GiB`), parsed to bytes. */
export const size = quantities(SIZE_BYTES, "a size such as 64KiB, 16MiB or 10GiB");

function quantities(units: Readonly<Record<string, number>>, meaning: string): Quantity {
  const make = (preset?: string) => {
    const required = quantity(units, meaning);
    return preset === undefined ? required : required.prefault(preset);
  };
  return make as Quantity;
}

function quantity(units: Readonly<Record<string, number>>, meaning: string) {
  const pattern = new RegExp(`^(\\d+(?:\\.\\d+)?)\\s*(${Object.keys(units).join("|")})$`);
  return z
    .string(`expected ${meaning}`)
    .regex(pattern, `expected ${meaning}`)
    .transform((text) => {
      const [, amount, unit] = pattern.exec(text) ?? [];
      return Math.round(Number(amount) * (units[unit ?? ""] ?? 0));
    });
}
