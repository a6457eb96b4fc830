import type { Reading } from "../kit/benchmark.js";
import type { ComparedRow } from "../kit/compared-row.js";
import type { Measurement } from "./measure.js";
import { summarize } from "./statistics.js";

const MIB = 2 ** 20;
const HEADINGS = [
  "",
  "runs",
  "p50 ms",
  "p95 ms",
  "p99 ms",
  "per s",
  "MiB/s",
  "CPU ms",
  "main ms",
  "stall ms",
  "peak MiB",
  "p50 / floor",
];

/** A table: the floor first, then each contender with its distance from it. */
export function report(title: string, measurements: readonly Measurement[]): string {
  const [floor] = measurements;
  const floorP50 = floor && summarize(floor.samples.map(({ tookMs }) => tookMs)).p50;
  const rows = measurements.map(({ contender, samples }, index) => {
    const { count, p50, p95, p99, mean } = summarize(samples.map(({ tookMs }) => tookMs));
    const atOnce = contender.atOnce ?? 1;
    const perSecond = (atOnce * 1000) / mean;
    return [
      `${index === 0 ? "floor: " : ""}${contender.label}${atOnce > 1 ? `, ${atOnce} at a time` : ""}`,
      String(count),
      ...[p50, p95, p99].map(milliseconds),
      perSecond.toFixed(perSecond < 100 ? 1 : 0),
      contender.bytes === undefined ? "" : ((contender.bytes * perSecond) / MIB).toFixed(0),
      whole(summarize(samples.map(({ cpuMs }) => cpuMs)).p50),
      whole(summarize(samples.map(({ mainMs }) => mainMs)).p50),
      whole(highest(samples.map(({ stallMs }) => stallMs))),
      whole(highest(samples.map(({ peakMiB }) => peakMiB))),
      floorP50 === undefined ? "" : `${(p50 / floorP50).toFixed(2)}x`,
    ];
  });
  return layOut(title, [HEADINGS, ...rows]);
}

/** Not by `Math.max(...)`: more samples than the stack holds are common where each takes microseconds. */
function highest(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY);
}

/** As `report`, for finished measurements: the first row is the baseline of the others. */
export function reportReading({ title, unit, rows, first = "floor" }: Reading): string {
  const firstP50 = rows[0] && summarize(rows[0].samples).p50;
  const table = rows.map(({ label, samples }, index) => {
    const { count, p50, p95, p99 } = summarize(samples);
    const numbers = [p50, p95, p99].map((value) => value.toFixed(unit === "ms" ? 2 : 1));
    const ratio = firstP50 === undefined ? "" : `${(p50 / firstP50).toFixed(2)}x`;
    return [`${index === 0 ? `${first}: ` : ""}${label}`, String(count), ...numbers, ratio];
  });
  return layOut(title, [
    ["", "runs", `p50 ${unit}`, `p95 ${unit}`, `p99 ${unit}`, `p50 / ${first}`],
    ...table,
  ]);
}

/** As `report`, for rows that were measured beside a peer, or beside another figure of the same run. */
export function reportCompared(rows: readonly ComparedRow[], against = "peer"): string {
  const figure = (value: number, unit: string): string => `${value.toFixed(value < 100 ? 2 : 0)} ${unit}`;
  const table = rows.map(({ row, unit, here, peer }) => [
    row,
    figure(here, unit),
    figure(peer, unit),
    `${(here / peer).toFixed(2)}x`,
  ]);
  const title = against === "peer" ? "medians, in turns with the peer" : `beside ${against}`;
  return layOut(title, [["", "here", against, `here / ${against}`], ...table]);
}

function layOut(title: string, table: readonly (readonly string[])[]): string {
  const widths = (table[0] ?? []).map((_, column) =>
    Math.max(...table.map((row) => row[column]?.length ?? 0)),
  );
  const lines = table.map((row) =>
    row
      .map((cell, column) =>
        column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0),
      )
      .join("  ")
      .trimEnd(),
  );
  return [title, ...lines].join("\n");
}

/** Empty for a value that was not measured. */
function whole(value: number): string {
  return Number.isNaN(value) ? "" : value.toFixed(0);
}

function milliseconds(value: number): string {
  return value.toFixed(value < 100 ? 2 : 0);
}
