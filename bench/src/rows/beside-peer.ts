import { settled } from "../kit/settled.js";
import type { ServerClient } from "../kit/server-client.js";
import type { ComparedRow } from "../kit/compared-row.js";
import { summarize } from "../report/statistics.js";
import type { Row, RowOptions } from "./row.js";

const ROUNDS = 5;

/** Measures a row on our server and on a peer, round by round in turns, each on a settled machine. @returns the median of each. */
export async function besidePeer(
  row: Row,
  { here, peer }: { readonly here: ServerClient; readonly peer: ServerClient },
  options: RowOptions,
): Promise<ComparedRow> {
  const prepared = [];
  try {
    for (const server of [here, peer])
      prepared.push({ measured: await row.prepare(server, options), figures: [] as number[] });
    for (let round = 0; round < ROUNDS; round += 1)
      for (const { measured, figures } of prepared) {
        await settled(options.seconds);
        figures.push(await measured.measure());
      }
  } finally {
    for (const { measured } of prepared) await measured.close();
  }
  const [ofHere = Number.NaN, ofPeer = Number.NaN] = prepared.map(({ figures }) => summarize(figures).p50);
  return { row: row.label, unit: row.unit, here: ofHere, peer: ofPeer };
}
