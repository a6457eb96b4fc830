import { z } from "zod";

const MIB = 2 ** 20;
const BYTES = {
  "": 1,
  "k": 1e3,
  "K": 1e3,
  "M": 1e6,
  "G": 1e9,
  "T": 1e12,
  "Ki": 2 ** 10,
  "Mi": 2 ** 20,
  "Gi": 2 ** 30,
  "Ti": 2 ** 40,
};
const MEMORY = /^(\d{1,15}(?:\.\d{1,9})?)([kKMGT]i?|)$/;
const CPU = /^(\d{1,9}(?:\.\d{1,9})?)(m?)$/;
const DURATION_MS = { h: 3_600_000, m: 60_000, s: 1_000, ms: 1 };
const DURATION = /^(?:\d{1,9}(?:\.\d{1,9})?(?:h|ms|m|s))+$/;

/** CPUs, as Kubernetes writes them: `1.5`, or `1500m`. */
export const cpuQuantity = z
  .union([z.string(), z.number().transform(String)])
  .transform((text, context) => {
    const [, amount, unit] = CPU.exec(text) ?? refuse(context, 'expected CPUs such as "1.5" or "1500m"');
    return unit === "m" ? Number(amount) / 1000 : Number(amount);
  })
  .pipe(z.number().min(0.1));

/** Memory, as Kubernetes writes it: `4Gi`, `512Mi`, or a number of bytes. In MiB. */
export const memoryQuantity = z
  .union([z.string(), z.number().transform(String)])
  .transform((text, context) => {
    const [, amount, unit = ""] =
      MEMORY.exec(text) ?? refuse(context, 'expected memory such as "4Gi" or "512Mi"');
    return Math.floor((Number(amount) * BYTES[unit as keyof typeof BYTES]) / MIB);
  })
  .pipe(z.int().min(128, "expected at least 128Mi"));

/** A length of time: seconds, or as Go writes it, `1h30m`. In milliseconds. */
export const lifetime = z
  .union([
    z.number().transform((seconds) => seconds * 1000),
    z.string().transform((text, context) => {
      if (!DURATION.test(text)) refuse(context, 'expected seconds, or a time such as "90m"');
      const parts = [...text.matchAll(/([\d.]+)(h|ms|m|s)/g)];
      return parts.reduce((sum, [, amount, unit]) => {
        return sum + Number(amount) * DURATION_MS[unit as keyof typeof DURATION_MS];
      }, 0);
    }),
  ])
  .pipe(z.number().positive());

function refuse(context: z.RefinementCtx, message: string): [] {
  context.addIssue({ code: "custom", message });
  return [];
}
