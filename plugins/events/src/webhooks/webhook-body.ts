import { z } from "zod";
import { EVENT_TYPES } from "../store/event-type.js";

const MAX_NAME = 256;
const MAX_URL = 2048;
const MAX_SECRET = 512;

const name = z.string().max(MAX_NAME);

const url = z
  .string()
  .max(MAX_URL)
  .refine((text) => {
    if (!URL.canParse(text)) return false;
    const { protocol, username, password } = new URL(text);
    return /^https?:$/.test(protocol) && username === "" && password === "";
  }, "expected an http or https URL without a user and a password");

const events = z
  .array(z.enum(EVENT_TYPES, `expected some of ${EVENT_TYPES.join(", ")}`))
  .min(1)
  .transform((types) => [...new Set(types)]);

const signatureSecret = z
  .string()
  .min(1)
  .max(MAX_SECRET)
  .refine(
    (text) => !text.startsWith("whsec_") || /^whsec_[A-Za-z0-9+/]{16,}={0,2}$/.test(text),
    "expected base64 after whsec_",
  );

const webhookBody = z.object({ name, url, events, enabled: z.boolean(), signatureSecret });

/** The body of PATCH /events/webhooks/:id. */
export const webhookChangeBody = webhookBody.partial();

/** The body of POST /events/webhooks. */
export const newWebhookBody = webhookBody.extend({
  name: name.default(""),
  enabled: z.boolean().default(true),
  signatureSecret: signatureSecret.optional(),
});
