import { runRounds, type RoundsOptions } from "./rounds/rounds.js";
import { answerIsolated } from "@coppice/test/harness/host/isolated.js";

// The process that `runIsolated` starts for rounds.
answerIsolated((question) =>
  runRounds({
    ...(question as RoundsOptions),
    onRound: (report) => void process.stderr.write(`${JSON.stringify(report)}\n`),
  }),
);
