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
      whole(summarize(samples.map(({ cpuMs }) => cpuMs)).mean),
      whole(Math.max(...samples.map(({ peakMiB }) => peakMiB))),
      floorP50 === undefined ? "" : `${(p50 / floorP50).toFixed(2)}x`,
    ];
  });
  const table = [HEADINGS, ...rows];
  const widths = HEADINGS.map((_, column) => Math.max(...table.map((row) => row[column]?.length ?? 0)));
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

/** Nothing for what was not measured. */
function whole(value: number): string {
  return Number.isNaN(value) ? "" : value.toFixed(0);
}

function milliseconds(value: number): string {
  return value.toFixed(value < 100 ? 2 : 0);
}
