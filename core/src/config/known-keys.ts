import { z } from "zod";

/** Parts of a JSON Schema that lead to the keys of an object. */
interface SchemaNode {
  readonly properties?: Readonly<Record<string, SchemaNode>>;
  readonly additionalProperties?: SchemaNode | false;
  readonly items?: SchemaNode;
  readonly anyOf?: readonly SchemaNode[];
  readonly oneOf?: readonly SchemaNode[];
  readonly allOf?: readonly SchemaNode[];
}

/** The keys of the object at a path of a schema; undefined for a plugin with zod 3. */
export function knownKeys(schema: z.ZodType, path: readonly PropertyKey[]): readonly string[] {
  if (!("_zod" in schema)) return [];
  const root = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as SchemaNode;
  let nodes = alternatives(root);
  for (const key of path) {
    nodes = nodes
      .map(({ properties, additionalProperties, items }) =>
        typeof key === "number" ? items : (properties?.[String(key)] ?? additionalProperties),
      )
      .flatMap((node) => (node ? alternatives(node) : []));
  }
  return nodes.flatMap(({ properties = {} }) => Object.keys(properties));
}

function alternatives(node: SchemaNode): readonly SchemaNode[] {
  return [node, ...[node.anyOf, node.oneOf, node.allOf].flatMap((some = []) => some.flatMap(alternatives))];
}
