import type { IncomingHttpHeaders } from "node:http";
import type { UniversalServerResponse } from "@connectrpc/connect/protocol";

const END_STREAM = 0x02;
const HEAD_BYTES = 5;

/** Message of connect-es about a body that is no protobuf, or no gzip. */
const SENDERS_FAULT = /^(parse binary: |decompression failed)/;

/** True when `blameSender` may apply to a request. Nearly all others skip it. */
export function mayBeUnparsable(headers: IncomingHttpHeaders): boolean {
  return (
    /^application\/(connect\+)?proto\b/.test(headers["content-type"] ?? "") ||
    headers["content-encoding"] !== undefined ||
    headers["connect-content-encoding"] !== undefined
  );
}

/**
 * Makes an unparsable or compressed message the client's fault: connect-es answers `internal`, and `invalid_argument`
 * only for JSON. May go when connect-es treats both alike.
 */
export async function blameSender(answer: UniversalServerResponse): Promise<UniversalServerResponse> {
  const { body, status } = answer;
  if (body === undefined || (status !== 200 && status !== 500)) return answer;
  const chunks = body[Symbol.asyncIterator]();
  const first = await chunks.next();
  const bytes = first.done === true ? undefined : Buffer.from(first.value);
  const isEnd = status === 200 && bytes?.[0] === END_STREAM;
  if (bytes !== undefined && (isEnd || status === 500)) {
    const message = bytes.subarray(isEnd ? HEAD_BYTES : 0);
    const reworded = rewordedError(message.toString());
    if (reworded !== undefined) {
      const head = Buffer.alloc(isEnd ? HEAD_BYTES : 0);
      if (isEnd) {
        head.writeUInt8(END_STREAM, 0);
        head.writeUInt32BE(Buffer.byteLength(reworded), 1);
      } else answer.header?.set("content-length", String(Buffer.byteLength(reworded)));
      const whole = Buffer.concat([head, Buffer.from(reworded)]);
      return { ...answer, status: isEnd ? 200 : 400, body: startingWith({ value: whole }, chunks) };
    }
  }
  return { ...answer, body: startingWith(first, chunks) };
}

interface ErrorMessage {
  readonly code?: unknown;
  readonly message?: unknown;
}

function rewordedError(json: string): string | undefined {
  const parsed = JSON.parse(json) as ErrorMessage & { readonly error?: ErrorMessage };
  const { error = parsed } = parsed;
  if (error.code !== "internal" || !SENDERS_FAULT.test(String(error.message))) return undefined;
  const blamed = { ...error, code: "invalid_argument" };
  return JSON.stringify(parsed.error === undefined ? blamed : { ...parsed, error: blamed });
}

/** Not a generator, which would add a step for every chunk of a long stream. */
function startingWith(
  first: IteratorResult<Uint8Array>,
  rest: AsyncIterator<Uint8Array>,
): AsyncIterable<Uint8Array> {
  let isFirst = true;
  return {
    [Symbol.asyncIterator]: () => ({
      next: async () => {
        if (!isFirst) return rest.next();
        isFirst = false;
        return first;
      },
      return: async () => (await rest.return?.()) ?? { done: true, value: undefined },
      throw: async (error) => (await rest.throw?.(error)) ?? { done: true, value: undefined },
    }),
  };
}
