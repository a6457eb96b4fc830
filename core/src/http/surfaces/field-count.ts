import type { DescField, DescMessage } from "@bufbuild/protobuf";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { MOST_VALUES, TooManyValues } from "../../kernel/parse-json.js";

/**
 * Refuses a binary message that has very many fields, those of the messages in it included: reading them would hold up
 * the event loop. Other faults are left to who reads it.
 * @throws TooManyValues
 */
export function requireFewFields(desc: DescMessage, bytes: Uint8Array): void {
  const reader = new BinaryReader(bytes);
  let fields = 0;
  const count = (within: DescMessage | undefined, end: number): void => {
    while (reader.pos < end) {
      const [number, wireType] = reader.tag();
      fields += 1;
      if (fields > MOST_VALUES) throw new TooManyValues(`it has more than ${MOST_VALUES} fields`);
      const inner = messageOf(within?.fields.find((field) => field.number === number));
      if (wireType === WireType.LengthDelimited && inner !== undefined) {
        const length = reader.uint32();
        count(inner, reader.pos + length);
      } else if (wireType !== WireType.StartGroup && wireType !== WireType.EndGroup) reader.skip(wireType);
    }
  };
  try {
    count(desc, bytes.length);
  } catch (error) {
    if (error instanceof TooManyValues) throw error;
  }
}

function messageOf(field: DescField | undefined): DescMessage | undefined {
  if (field?.fieldKind === "message" || field?.fieldKind === "list") return field.message;
  return undefined;
}
